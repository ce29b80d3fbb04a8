"""What a stored tensor is called by pretrace: its canonical name, or that it is a buffer, or that no table knows it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pretrace.checkpoint.names import best_table, is_canonical
from pretrace.checkpoint.table import Ignored
from pretrace.checkpoint.view import StateView

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Names:
    """The canonical names of a view's tensors; a fused one is called `blocks.3.attn.{q,k,v}.weight`."""

    of: dict[str, str]  # only names that a table knows
    buffers: frozenset[str]  # tensors that can be computed and are no parameters

    def find(self, canonical: str) -> str:
        """The stored name of a canonical one, '' if there is none."""
        return next((name for name, known in self.of.items() if known == canonical), "")


def names_of(view: StateView) -> Names:
    """The canonical names of all tensors of a view, from the table that knows the most of them."""
    names = view.names()
    if is_canonical(names):
        return Names({name: name for name in names}, frozenset())
    table = best_table(view)
    known: dict[str, str] = {}
    buffers = set()
    for name in names:
        match = table.match(name) if table is not None else None
        if match is None:
            continue
        if isinstance(match[0], Ignored):
            buffers.add(name)
        else:
            known[name] = match[0].ours if match[1] is None else match[0].ours.replace("{i}", str(match[1]))
    return Names(known, frozenset(buffers))


def layer_of(name: str) -> str:
    """The number of the layer in a tensor's name, '' if there is none.

    >>> layer_of("gpt_neox.layers.11.mlp.dense_h_to_4h.weight")
    '11'
    """
    found = _LAYER.search(name)
    return found[1] if found else ""


def kind_of(name: str) -> str:
    """A tensor's name without its layer: the same for the same tensor of every layer.

    >>> kind_of("blocks.11.mlp.up.weight")
    'mlp.up.weight'
    """
    found = _LAYER.search(name)
    return name[found.end() :] if found else name
