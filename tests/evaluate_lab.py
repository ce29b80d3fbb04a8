"""Small models with real tokenizers, real rows, and lm-eval's own backend beside ours."""

import json

import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from assets import unpacked

MODELS = unpacked("models") / "models"
STORIES = MODELS / "stories260k-hf"
ROWS = {
    "lambada_openai": unpacked("eval") / "eval" / "lambada_openai_test.jsonl",
    "hellaswag": unpacked("eval") / "eval" / "hellaswag_val_subset.jsonl",
    "wikitext": unpacked("share-alike/wikitext2") / "eval" / "wikitext2_raw_test.jsonl",
}
SMALL = {"vocab_size": 50304, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def gpt2_tokenizer():
    from pretrace.data.tokenizer import load

    impl = load(unpacked("tokenizers") / "tokenizers" / "gpt2").impl
    return PreTrainedTokenizerFast(tokenizer_object=impl, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def neox_tokenizer():
    file = unpacked("tokenizers") / "tokenizers" / "neox-20b" / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def saved(folder, model, tokenizer):
    """A checkpoint folder as transformers writes it, weights far from zero so that logits differ."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def gpt2(folder, **changes):
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50257, "n_positions": 128, **changes}
    return saved(folder, GPT2LMHeadModel(GPT2Config(**sizes)), gpt2_tokenizer())


def gpt_neox(folder):
    torch.manual_seed(0)
    config = GPTNeoXConfig(**SMALL, intermediate_size=128, max_position_embeddings=128, rotary_pct=0.25)
    return saved(folder, GPTNeoXForCausalLM(config), neox_tokenizer())


def llama(folder):
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, intermediate_size=96, num_key_value_heads=2, max_position_embeddings=128)
    return saved(folder, LlamaForCausalLM(config), gpt2_tokenizer())


def gptj(folder):
    """A family that pretrace's decoder does not run."""
    torch.manual_seed(0)
    config = GPTJConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=50400, n_positions=128, rotary_dim=4)
    return saved(folder, GPTJForCausalLM(config), gpt2_tokenizer())


def rows_of(task, folder, numbers):
    """A file with some rows of a task."""
    lines = ROWS[task].read_text().split("\n")
    path = folder / f"{task}-rows.jsonl"
    path.write_text("\n".join(lines[i] for i in numbers) + "\n")
    return path


def short_pages(folder, n=3, characters=2500):
    """WikiText's first pages, cut so that a test is short."""
    pages = [json.loads(line)["page"][:characters] for line in ROWS["wikitext"].read_text().split("\n")[:n]]
    path = folder / "wikitext-rows.jsonl"
    path.write_text("".join(json.dumps({"page": page}) + "\n" for page in pages))
    return path


def theirs(folder, task, max_length, batch_size=4):
    """What lm-eval's hf backend makes of a loaded task: its samples by document, and its results."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=str(folder), max_length=max_length, batch_size=batch_size, dtype="float32", device="cpu")
    for one in task.tasks.values():
        one.set_config(key="num_fewshot", value=0)
    out = evaluate(lm, task.bundle, bootstrap_iters=0, log_samples=True)
    return out["samples"], out["results"]


def tokenizer_of(folder):
    return AutoTokenizer.from_pretrained(folder)
