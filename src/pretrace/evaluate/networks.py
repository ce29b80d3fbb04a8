"""The model of a checkpoint as a `Network`: our decoder, or the model class of transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrace.checkpoint.detect import open_state
from pretrace.checkpoint.model_of import model_of, whole_model
from pretrace.checkpoint.names import canonical, is_state
from pretrace.checkpoint.optimizer_names import chosen
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.write_hf import write_hf
from pretrace.errors import PretraceError
from pretrace.evaluate.settings import Settings
from pretrace.evaluate.subject import Subject, here
from pretrace.score.likelihood import decoder_of
from pretrace.score.network import DecoderNetwork, Network, plain
from pretrace.score.requests import PackedBatch

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ROWS = 512  # rows of logits that are widened to float32 at a time


def open_network(subject: Subject, settings: Settings) -> Network:
    """Loads the weights.

    Raises
    ------
    PretraceError
        If they do not fit the model, or the device is not there.
    """
    if settings.device != "cpu" and not torch.cuda.is_available():
        raise PretraceError(f"this machine has no device {settings.device}", "--device", "use cpu")
    torch.set_num_threads(settings.threads)
    dtype = _DTYPES[settings.dtype]
    if settings.through == "transformers":
        return TransformersNetwork(_load_transformers(subject, dtype).to(settings.device))
    assert subject.spec is not None
    with open_state(subject.path) as view:
        model = decoder_of(_parameters(view, subject), subject.spec)
    return DecoderNetwork(model.to(device=settings.device, dtype=dtype))


class TransformersNetwork:
    """A causal model of transformers. It reads one continuation a sequence, and makes the logits of every position."""

    shares = False

    def __init__(self, model: Any) -> None:
        self._model = model.eval()

    @torch.inference_mode()
    def answer(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Log-likelihood (float32) and likeliest (bool) of every label [N]."""
        device = self._model.device
        # No mask: padding stands on the right, where a causal model does not look.
        logits = self._model(torch.from_numpy(batch.tokens).to(device)).logits.flatten(0, 1)
        labels = torch.from_numpy(batch.labels).to(device)
        rows = torch.arange(len(logits)) if batch.looked_at is None else torch.from_numpy(batch.looked_at)
        parts = [
            plain(logits[rows[i : i + _ROWS].to(device)], labels[i : i + _ROWS]) for i in range(0, len(labels), _ROWS)
        ]
        return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])

    def greedy(self, ids: Sequence[int]) -> Iterator[int]:
        """The likeliest token after `ids`, then after that one, without end."""
        new, kept = list(ids), None
        while True:
            with torch.inference_mode():
                out = self._model(torch.tensor([new], device=self._model.device), past_key_values=kept, use_cache=True)
            # A model without such a memory (state spaces have another) reads its whole text again.
            kept = getattr(out, "past_key_values", None)
            token = int(out.logits[0, -1].argmax())
            new = [token] if kept is not None else [*new, token]
            yield token


def _load_transformers(subject: Subject, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    with open_state(subject.path) as view:
        if Path(subject.path, "config.json").is_file() and view.format not in ("dcp", "megatron"):
            return _pretrained(AutoModelForCausalLM, subject.path, dtype)
        if subject.spec is None:
            raise PretraceError(subject.why, subject.path, "convert it to a folder that transformers loads")
        with tempfile.TemporaryDirectory(prefix="pretrace-hf-") as folder:
            write_hf(folder, _parameters(view, subject), subject.spec)
            return _pretrained(AutoModelForCausalLM, folder, dtype)


def _parameters(view: StateView, subject: Subject) -> StateView:
    """The model's tensors under canonical names; the optimizer's, where there are any, are left out."""
    assert subject.spec is not None
    try:
        whole = whole_model(canonical(view, subject.spec), model_of(view, subject.config_file), subject.path)
    except PretraceError as error:
        raise here(error, subject.path) from None
    return chosen(whole, [name for name in whole.names() if not is_state(name)])


def _pretrained(kind: Any, folder: str, dtype: torch.dtype) -> Any:
    try:
        return kind.from_pretrained(folder, dtype=dtype, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises what it likes
        said = " ".join(str(error).split())[:300]
        raise PretraceError(f"transformers cannot load the model: {said}", folder, "mend what is named") from None
