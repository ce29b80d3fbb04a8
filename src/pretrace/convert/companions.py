"""What belongs to a model and is no tensor: the tokenizer and its like, special tokens, dropout in fine-tuning."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pretrace.convert.plan import Plan
from pretrace.errors import naming
from pretrace.files import read_json, write_json

_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "embd_pdrop", "attn_pdrop", "resid_pdrop", "hidden_dropout",
            "attention_dropout")  # fmt: skip
NAMES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
               "tokenizer.model", "added_tokens.json", "generation_config.json")  # fmt: skip


def carry_over(planned: Plan, work: Path) -> None:
    """What transformers' config says beside the model: special tokens, dropout in fine-tuning."""
    theirs = planned.source.raw.metadata().get("config")
    path = work / "config.json"
    if planned.request.to != "hf" or not isinstance(theirs, Mapping) or not path.is_file():
        return
    config = read_json(path)
    if theirs.get("model_type") == config.get("model_type"):
        write_json(path, config | {key: theirs[key] for key in _CARRIED if key in theirs})


def copy_companions(planned: Plan, work: Path) -> None:
    """The tokenizer and its like, which belong to a model and are no tensors."""
    source = Path(planned.source.path)
    folder = source if source.is_dir() else source.parent
    for name in NAMES:
        if (folder / name).is_file() and not (work / name).exists():
            with naming(folder / name, "copying"):
                shutil.copyfile(folder / name, work / name)
