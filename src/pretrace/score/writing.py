"""Greedy writing with our decoder: keys and values of what was read are kept, so that a new token costs one position.

The plain way, the whole text read again for every token, stays beside it as the specification.

Axes: B = 1 sequence, T positions, D width, H heads, d lanes of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrace.model.decoder import Block, Decoder, SelfAttention, rotate


def greedy_plain(model: Decoder, ids: Sequence[int]) -> Iterator[int]:
    """The likeliest token after `ids`, then after that one, without end; the first of equals."""
    text = list(ids)
    while True:
        with torch.inference_mode():
            hidden = model.hidden(torch.tensor([text], device=model.embed.weight.device))
            text.append(int(model.logits(hidden[0, -1]).argmax()))
        yield text[-1]


def greedy(model: Decoder, ids: Sequence[int]) -> Iterator[int]:
    """As `greedy_plain`. The logits differ in their last bits: products of one row are added in another order."""
    device, new, start = model.embed.weight.device, list(ids), 0
    memories = [_Memory(block.attn) for block in _blocks(model)]
    while True:
        with torch.inference_mode(), _remembering(model, memories):
            positions = torch.arange(start, start + len(new), device=device).unsqueeze(0)
            hidden = model.hidden(torch.tensor([new], device=device), positions)
            start, new = start + len(new), [int(model.logits(hidden[0, -1]).argmax())]
        yield new[0]


def _blocks(model: Decoder) -> Iterator[Block]:
    for block in model.blocks:
        assert isinstance(block, Block)
        yield block


@contextmanager
def _remembering(model: Decoder, memories: Sequence[_Memory]) -> Iterator[None]:
    """Lets each block's memory attend in the place of its attention."""
    for block, memory in zip(_blocks(model), memories, strict=True):
        block.attn.forward = memory.attend  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in _blocks(model):
            del block.attn.forward


class _Memory:
    """Keys and values [1, H, T, d] that one attention has seen."""

    def __init__(self, attention: SelfAttention) -> None:
        self._attention = attention
        self._kept: tuple[Tensor, Tensor] | None = None

    def attend(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, allowed: object, drop: object) -> Tensor:
        """[1, T, D] of new positions -> [1, T, D]; they look at all that came before, too."""
        attention, t = self._attention, x.shape[1]
        d = attention.spec.head_dim
        q, k, v = (part(x).view(1, t, -1, d).transpose(1, 2) for part in (attention.q, attention.k, attention.v))
        if rotary is not None:
            cos, sin = rotary[0].to(q.dtype), rotary[1].to(q.dtype)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        first = self._kept is None
        if self._kept is not None:
            k, v = torch.cat((self._kept[0], k), dim=2), torch.cat((self._kept[1], v), dim=2)
        self._kept = k, v
        groups = attention.spec.n_heads // attention.spec.n_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        # After the first call there is one new position: it looks at everything.
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=first)
        out: Tensor = attention.out(mixed.transpose(1, 2).reshape(1, t, -1))
        return out
