"""What lm-evaluation-harness takes on its command line, as data: flags, backends and the keys each backend reads.

Source: lm-evaluation-harness 0.4.13 (`_cli/run.py` and the signatures in `models/`); tests compare the tables with an
installed harness. What earlier versions took and 0.4.13 does not is in `GONE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VERSION = "0.4.13"

# none: a switch; one: a value; many: values up to the next flag; maybe: a value or nothing.
Takes = Literal["none", "one", "many", "maybe"]

FLAGS: dict[str, Takes] = {
    "config": "one", "tasks": "many", "model": "one", "model_args": "many", "apply_chat_template": "maybe", "limit": "one",
    "use_cache": "one", "num_fewshot": "one", "batch_size": "one", "max_batch_size": "one", "device": "one",
    "gen_kwargs": "many", "output_path": "one", "log_samples": "none", "samples": "one", "cache_requests": "maybe",
    "check_integrity": "none", "system_instruction": "one", "fewshot_as_multiturn": "maybe", "include_path": "one",
    "verbosity": "one", "write_out": "none", "show_config": "none", "wandb_args": "many", "wandb_config_args": "many",
    "trackio_args": "many", "hf_hub_log_args": "many", "predict_only": "none", "seed": "one", "trust_remote_code": "none",
    "confirm_run_unsafe_code": "none", "metadata": "many", "help": "none",
}  # fmt: skip
SHORT = {
    "C": "config", "t": "tasks", "M": "model", "a": "model_args", "L": "limit", "c": "use_cache", "f": "num_fewshot",
    "b": "batch_size", "o": "output_path", "s": "log_samples", "E": "samples", "v": "verbosity", "w": "write_out",
    "x": "predict_only", "h": "help",
}  # fmt: skip
# Flags that 0.4.13 refuses: what they took, and what became of them.
GONE: dict[str, tuple[Takes, str]] = {
    "no_cache": ("none", "results are cached only with --use_cache since 0.4"),
    "description_dict_path": ("one", "descriptions stand in the task's YAML since 0.4"),
    "provide_description": ("none", "it did nothing before it was taken out"),
    "output_base_path": ("one", "write --output_path"),
    "decontamination_ngrams_path": ("one", "taken out in 0.4"),
    "bootstrap_iters": ("one", "only lm_eval.simple_evaluate takes it"),
    "huggingface_tokenizer": ("one", "write tokenizer=... inside --model_args"),
    "write_out_info": ("none", "write --log_samples"),
}


@dataclass(frozen=True, slots=True)
class Backend:
    """What a `--model` reads of `--model_args`, and what happens to other keys.

    `others`: "refused" (an error at loading), "ignored" (nothing says so), "passed on" (to another library, which decides).
    `length`: the key that sets the context length.
    """

    keys: frozenset[str]
    others: Literal["refused", "ignored", "passed on"]
    length: str
    must: str = "pretrained"


_HF = frozenset({
    "pretrained", "backend", "revision", "subfolder", "tokenizer", "truncation", "logits_cache", "max_length", "device",
    "dtype", "softmax_dtype", "mixed_precision_dtype", "batch_size", "max_batch_size", "trust_remote_code",
    "use_fast_tokenizer", "add_bos_token", "prefix_token_id", "parallelize", "max_memory_per_gpu", "max_cpu_memory",
    "offload_folder", "tp_plan", "peft", "delta", "autogptq", "gptqmodel", "gguf_file", "think_end_token",
    "enable_thinking", "chat_template_args",
})  # fmt: skip
# Keys that `hf` hands to transformers' from_pretrained, which knows them.
FROM_PRETRAINED = frozenset({
    "load_in_8bit", "load_in_4bit", "attn_implementation", "low_cpu_mem_usage", "device_map", "torch_dtype",
    "quantization_config", "bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "use_safetensors", "variant", "cache_dir",
    "token", "local_files_only", "force_download", "use_cache", "output_hidden_states", "rope_scaling",
})  # fmt: skip
_VLLM = frozenset({
    "pretrained", "dtype", "revision", "trust_remote_code", "tokenizer", "tokenizer_mode", "tokenizer_revision",
    "add_bos_token", "prefix_token_id", "tensor_parallel_size", "quantization", "max_gen_toks", "batch_size",
    "max_batch_size", "max_length", "max_model_len", "seed", "data_parallel_size", "lora_local_path", "enable_thinking",
    "chat_template_args", "think_end_token", "max_lora_rank", "truncation_side", "device", "gpu_memory_utilization",
    "swap_space", "enforce_eager", "kv_cache_dtype",
})  # fmt: skip
_API = frozenset({
    "model", "pretrained", "base_url", "tokenizer", "tokenizer_backend", "truncate", "num_concurrent", "max_retries",
    "max_gen_toks", "batch_size", "seed", "max_length", "add_bos_token", "custom_prefix_token_id", "tokenized_requests",
    "trust_remote_code", "revision", "use_fast_tokenizer", "verify_certificate", "ca_cert_path", "auth_token",
    "eos_string", "timeout", "header", "max_images",
})  # fmt: skip
_SGLANG = frozenset({
    "pretrained", "batch_size", "max_batch_size", "max_model_len", "max_gen_toks", "add_bos_token", "tokenizer_path",
    "tokenizer_mode", "load_format", "trust_remote_code", "dtype", "kv_cache_dtype", "context_length", "device",
    "chunked_prefill_size", "mem_fraction_static", "dp_size", "tp_size", "prefix_token_id", "think_end_token",
})  # fmt: skip
_NEMO = frozenset({
    "path", "max_length", "batch_size", "max_gen_toks", "devices", "num_nodes", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "precision",
})  # fmt: skip

_HF_BACKEND = Backend(_HF, "passed on", "max_length")
_API_BACKEND = Backend(_API, "ignored", "max_length", must="model")
BACKENDS: dict[str, Backend] = {
    **dict.fromkeys(("hf", "hf-auto", "huggingface"), _HF_BACKEND),
    "mamba_ssm": Backend(_HF | {"is_hf"}, "passed on", "max_length"),
    "vllm": Backend(_VLLM, "passed on", "max_model_len"),
    "sglang": Backend(_SGLANG, "passed on", "context_length"),
    **dict.fromkeys(
        ("gguf", "ggml"), Backend(frozenset({"base_url", "max_length"}), "ignored", "max_length", "base_url")
    ),
    "nemo_lm": Backend(_NEMO, "ignored", "max_length", must="path"),
    **dict.fromkeys(
        ("local-completions", "local-chat-completions", "openai-completions", "openai-chat-completions"), _API_BACKEND
    ),
}
# Names of `--model` before 0.4; all loaded transformers' models.
OLD_MODELS = ("hf-causal", "hf-causal-experimental", "hf-seq2seq", "gpt2", "gpt3")
# Backends that are known by name only.
OTHER_MODELS = frozenset({
    "anthropic-chat", "anthropic-chat-completions", "anthropic-completions", "dummy", "hf-audiolm-qwen", "hf-mistral3",
    "hf-multimodal", "ipex", "litellm", "litellm-chat", "litellm-chat-completions", "megatron_lm", "neuronx",
    "onnxruntime", "onnxruntime-genai", "openvino", "habana", "sglang-generate", "steered", "textsynth", "trtllm",
    "vllm-vlm", "watsonx_llm", "winml",
})  # fmt: skip

# What people write for a key that a backend spells otherwise.
MEANT = {
    "max_len": "max_length", "max_seq_len": "max_length", "max_seq_length": "max_length", "model_max_length": "max_length",
    "seq_len": "max_length", "context_length": "max_length", "max_tokens": "max_gen_toks", "model": "pretrained",
    "model_name": "pretrained", "path": "pretrained", "precision": "dtype", "torch_dtype": "dtype", "bos": "add_bos_token",
    "add_bos": "add_bos_token", "use_accelerate": "parallelize", "fast_tokenizer": "use_fast_tokenizer",
}  # fmt: skip
DTYPES = frozenset({
    "auto", "float32", "float16", "bfloat16", "float64", "float", "half", "bfloat", "double", "int8", "uint8",
    "float8_e4m3fn", "float8_e5m2",
})  # fmt: skip
DTYPE_MEANT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}

# Tasks whose whole text is scored: few-shot examples are built and thrown away (the request is the target alone).
ROLLING_TASKS = ("wikitext", "pile_", "c4", "paloma_")
# Tasks of before 0.4 by another name since.
OLD_TASKS = {"lambada": "lambada_openai", "hendrycksTest-": "mmlu_", "truthfulqa_mc": "truthfulqa_mc1"}

# Tasks and groups that are often evaluated, to catch a slip of the pen; the harness has 12,000 in all.
TASKS = frozenset({
    "agieval", "anagrams1", "anagrams2", "anli", "anli_r1", "anli_r2", "anli_r3", "arc_challenge", "arc_easy",
    "arithmetic", "asdiv", "babi", "bbh", "bigbench", "blimp", "boolq", "c4", "cb", "cola", "commonsense_qa", "copa",
    "coqa", "crows_pairs", "cycle_letters", "drop", "eq_bench", "fda", "glue", "gpqa", "gsm8k", "gsm8k_cot",
    "gsm8k_platinum", "headqa", "hellaswag", "hendrycks_ethics", "hendrycks_math", "humaneval", "humaneval_plus",
    "ifeval", "lambada", "lambada_openai", "lambada_openai_cloze_yaml", "lambada_standard", "lambada_standard_cloze_yaml",
    "leaderboard", "logiqa", "logiqa2", "longbench", "mathqa", "mbpp", "mbpp_plus", "mc_taco", "medmcqa",
    "medqa_4options", "mgsm", "minerva_math", "mmlu", "mmlu_pro", "mnli", "mnli_mismatch", "mrpc", "multirc", "mutual",
    "mutual_plus", "nq_open", "openbookqa", "paloma", "pile", "pile_10k", "piqa", "prost", "pubmedqa", "qa4mre", "qasper",
    "qnli", "qqp", "race", "random_insertion", "record", "reversed_words", "rte", "ruler", "sciq", "sglue_rte",
    "social_iqa", "squad_completion", "squadv2", "sst2", "storycloze", "swag", "swde", "toxigen", "triviaqa",
    "truthfulqa", "truthfulqa_gen", "truthfulqa_mc1", "truthfulqa_mc2", "unscramble", "webqs", "wic", "wikitext",
    "winogrande", "wmdp", "wnli", "wsc", "wsc273", "xcopa", "xstorycloze", "xwinograd",
})  # fmt: skip
# How the names of large families begin.
FAMILIES = (
    "mmlu_", "bigbench_", "blimp_", "agieval_", "ceval", "cmmlu", "leaderboard_", "longbench_", "bbh_", "crows_pairs_",
    "mgsm_", "xcopa_", "xwinograd_", "xstorycloze_", "minerva_math_", "hendrycks_math_", "ruler", "niah_",
    "lambada_openai_mt_", "gpqa_", "tiny", "realtoxicityprompts", "arithmetic_", "m_mmlu", "truthfulqa_", "scrolls_",
    "qa4mre_", "pile_", "paloma_", "ethics_", "babi", "global_mmlu_", "hellaswag_", "arc_", "gsm8k_", "humaneval_",
    "mbpp_", "wmdp_", "inverse_scaling_", "super_glue", "medqa", "storycloze_", "headqa_",
)  # fmt: skip
