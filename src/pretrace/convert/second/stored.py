"""Stored tensors by the names of their framework, as float64, for the second reading."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrace.checkpoint.names import is_state
from pretrace.checkpoint.view import StateView, read_all
from pretrace.convert.second.arithmetic import Array
from pretrace.dtypes import to_float

_NESTED = ("model.model.", "model.transformer.", "model.gpt_neox.", "model.decoder.layers.", "model.language_model.")
# What wrappers and savers put before all names. "model." of {"model": ...} is not among them: Llama's own names start so.
_BEFORE = ("_orig_mod.", "module.", "state.mdl_vars.params.lm.", "mdl_vars.params.lm.", "params.params.", "params.")


class Stored:
    """Tensors of a view as float64, by bare name. `layer` reads one layer of a stacked array, or of arrays apart."""

    def __init__(self, view: StateView, n_layers: int = 0) -> None:
        self._view, self._n_layers = view, n_layers
        self._names = {bare(name): name for name in view.names() if not is_state(name)}
        if any(name.startswith(_NESTED) for name in self._names):  # a save of {"model": ...}
            self._names = {name.removeprefix("model."): full for name, full in self._names.items()}
        if "transformer.wte.weight" not in self._names and "wte.weight" in self._names:
            # The original GPT-2 release has no prefix.
            self._names = {f"transformer.{name}": full for name, full in self._names.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape."""
        return self._view.info(self._names[name]).shape

    def __call__(self, name: str) -> Array:
        """A whole tensor."""
        full = self._names[name]
        return _wide(read_all(self._view, full), self._view.info(full).dtype)

    def rows(self, name: str, ids: NDArray[np.int64]) -> Array:
        """Rows `ids` of a matrix: [..., D]."""
        full = self._names[name]
        info = self._view.info(full)
        width = math.prod(info.shape[1:])
        table = {i: self._view.read(full, i * width, (i + 1) * width) for i in np.unique(ids).tolist()}
        made = np.stack([_wide(table[i], info.dtype) for i in ids.ravel().tolist()])
        return made.reshape(*ids.shape, width)

    def said(self, key: str, otherwise: Any) -> Any:
        """What the checkpoint's own metadata say under `key`."""
        return self._view.metadata().get(key, otherwise)

    def has_layer(self, name: str) -> bool:
        """Whether there is a tensor of that name, stacked or for layer 0."""
        return name in self._names or _apart(name, 0) in self._names

    def layer(self, name: str, i: int) -> Array:
        """Layer `i`: of a stacked array its slice, else the array `..layers_<i>..`."""
        if name not in self._names:
            return self(_apart(name, i))
        return self.slice(name, self._axis(), i)

    def slice(self, name: str, axis: int, i: int) -> Array:
        """Slice `i` of a stacked array along `axis`."""
        full = self._names[name]
        info = self._view.info(full)
        outer, inner = math.prod(info.shape[:axis]), math.prod(info.shape[axis + 1 :])
        n = info.shape[axis]
        blocks = [self._view.read(full, (a * n + i) * inner, (a * n + i + 1) * inner) for a in range(outer)]
        made = _wide(np.concatenate(blocks), info.dtype)
        return made.reshape(info.shape[:axis] + info.shape[axis + 1 :])

    def _axis(self) -> int:
        """Where layers are stacked: told by a norm's scale, [L, D] or [D, L]. Paxml stacks on axis 0."""
        if "transformer.repeat.sub.x_layers_0.layer_norm.scale" in self._names:
            return 0
        scale = next(
            n for n in self._names if n.startswith("decoder.layers.pre_self_attention") and n.endswith("scale")
        )
        # MaxText's param_scan_axis is 1 unless set otherwise; both fit where the width is the number of layers.
        return 1 if self.shape(scale)[1] == self._n_layers else 0


def bare(name: str) -> str:
    """The name without what wrappers and savers put before it.

    >>> bare("params.params.decoder.decoder_norm.scale"), bare("module.transformer.wte.weight")
    ('decoder.decoder_norm.scale', 'transformer.wte.weight')
    """
    for start in _BEFORE:
        if name.startswith(start):
            return bare(name[len(start) :])
    return name


def _apart(name: str, i: int) -> str:
    return name.replace("decoder.layers.", f"decoder.layers_{i}.")


def _wide(block: NDArray[np.generic], dtype: str) -> Array:
    return to_float(block, dtype).astype(np.float64)
