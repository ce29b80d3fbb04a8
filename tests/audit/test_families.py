"""Fresh models of many families, as transformers writes them, in three dtypes: nothing is accused."""

import pytest

from pretrace import audit

COMMON = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1000}
GATED = {**COMMON, "num_key_value_heads": 2, "intermediate_size": 320}
FAMILIES = {
    "GPT2": {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000},
    "GPTNeoX": {**COMMON, "intermediate_size": 512},
    "Llama": GATED,
    "Mistral": GATED,
    "Qwen2": {**GATED, "tie_word_embeddings": True},
    "Olmo2": {**COMMON, "intermediate_size": 320, "pad_token_id": 1},
    "Gemma2": {**GATED, "head_dim": 32},
    "OPT": {**COMMON, "ffn_dim": 320, "word_embed_proj_dim": 128},
    "Bloom": {"n_layer": 4, "hidden_size": 128, "n_head": 4, "vocab_size": 1000},
    "Phi": {**COMMON, "intermediate_size": 320},
    "GPTJ": {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "rotary_dim": 16},
    "Mamba": {"hidden_size": 128, "num_hidden_layers": 4, "vocab_size": 1000},
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_model_is_not_accused(tmp_path, family, dtype):
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="1MB")
    found = audit.checkpoint(tmp_path)
    assert [f for f in found.findings if f.severity != "info"] == []
