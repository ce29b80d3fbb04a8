"""What we write loads in transformers as is, and our config means the same model."""

import numpy as np
import pytest
import torch
import transformers

from assets import checkpoint_cases
from pretrace.checkpoint import ArraysView, canonical, config_of, open_state, read_all, spec_of, survey, write_hf
from pretrace.errors import PretraceError
from pretrace.model.decoder import Decoder
from pretrace.model.spec import tensor_shapes

CASES = ("good_neox", "good_gpt2_tied", "good_llama")


@pytest.mark.parametrize("case", CASES)
def test_a_config_survives_the_way_there_and_back(case):
    with open_state(checkpoint_cases() / case) as view:
        spec = spec_of(view.metadata()["config"])
        assert spec_of(config_of(spec, "float32")) == spec


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_loads_in_transformers_with_the_same_bits_and_no_missing_name(case, tmp_path):
    with open_state(checkpoint_cases() / case) as view:
        write_hf(tmp_path, canonical(view), spec_of(view.metadata()["config"]))
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    original = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_cases() / case)
    theirs = original.state_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name])


@pytest.mark.parametrize("case", CASES)
def test_our_decoder_filled_by_canonical_names_gives_the_probes_loss(case):
    probe = np.load(checkpoint_cases() / case / "probe.npz")
    with open_state(checkpoint_cases() / case) as view:
        ours = canonical(view)
        model = Decoder(spec_of(view.metadata()["config"]))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(as_torch(ours, name))
    with torch.no_grad():
        logits = model(torch.from_numpy(probe["ids"].astype(np.int64)))
    # fp32 forward passes of two implementations: the fixtures' logits reach about 20, a few ulp of them are 1e-5.
    assert np.abs(logits[:, -1].numpy() - probe["logits_last"]).max() < 2e-4


def as_torch(view, name):
    info = view.info(name)
    block = torch.from_numpy(read_all(view, name))
    return block.view(getattr(torch, info.dtype)).reshape(info.shape)


def test_a_native_model_keeps_canonical_names(tmp_path):
    with open_state(checkpoint_cases() / "good_llama") as view:
        spec = spec_of(view.metadata()["config"]).model_copy(update={"family": "native"})
    zeros = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(spec).items()}
    write_hf(tmp_path, ArraysView(zeros), spec)
    with open_state(tmp_path) as again:
        assert again.names() == tuple(tensor_shapes(spec))
        assert canonical(again).names() == again.names()


def test_an_architecture_that_the_decoder_has_not_is_refused_by_name():
    with pytest.raises(PretraceError, match="model_type 'opt'"):
        spec_of({"model_type": "opt"})
    with pytest.raises(PretraceError, match="rotary scaling 'llama3'"):
        spec_of({"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}})


def test_importing_the_room_brings_no_torch():
    import subprocess
    import sys

    code = "import sys, pretrace.checkpoint; print([m for m in ('torch', 'jax', 'transformers') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


TINY = {
    "gpt_neox": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
    "llama": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 48},
}  # fmt: skip


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_transformers_saves_in_shards_is_read_bit_for_bit(kind, dtype, tmp_path):
    config = transformers.AutoConfig.for_model(kind, vocab_size=50, max_position_embeddings=16, **TINY[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    theirs = model.state_dict()
    seen = survey(tmp_path)
    assert seen.findings == ()
    for name in seen.view.names():
        # transformers 5 calls NeoX's head lm_head in memory and embed_out on the disk.
        assert torch.equal(as_torch(seen.view, name), theirs["lm_head.weight" if name == "embed_out.weight" else name])
    ours = canonical(seen.view)
    assert {name: ours.info(name).shape for name in ours.names()} == tensor_shapes(spec_of(seen.config))
