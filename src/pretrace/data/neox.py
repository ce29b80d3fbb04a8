"""The order of GPT-NeoX: one index a source, several sources blended by weight; the head's other packing."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt

import pretrace.data.blend as blend
import pretrace.data.index as index
import pretrace.data.overflow as overflow
from pretrace.data.index import IndexPlan
from pretrace.data.samplers import Listed, Part, Sampler, blended, part_of, weights_of
from pretrace.data.sources import TokenSource, open_source
from pretrace.data.tokenfile import TokenFile
from pretrace.data.windows import StreamWindows, Windows, join
from pretrace.errors import PretraceError
from pretrace.spec import Spec


class NeoxOrder(Spec):
    """GPT-NeoX. `split`: the shares of `data_path`; None: whole files by weight (`train-data-paths`, Pythia's way)."""

    family: Literal["neox"]
    version: Literal["v1.0", "head"]
    num_samples: (
        NonNegativeInt | None
    )  # what training asks for (steps * global batch); None: one epoch (head's train_epochs)
    seed: NonNegativeInt
    split: str | None
    part: Part
    surplus: bool  # ask each file for 0.5% more, as `train-data-paths` does
    packing: Literal["packed", "pack_until_overflow", "unpacked"] = (
        "packed"  # the head's pack_impl; v1.0 has `packed` only
    )
    allow_chopped: bool = True  # of pack_until_overflow: cut documents longer than a sample, or leave them out

    def hashed(self) -> dict[str, Any]:
        """The plain data that the digest covers: the packing only where it is not the one that every version has."""
        data: dict[str, Any] = super().hashed()
        if self.packing == "packed":
            del data["packing"], data["allow_chopped"]
        return data


def open_neox(order: NeoxOrder, sources: tuple[TokenSource, ...], seq_len: int) -> tuple[Sampler, Windows]:
    """One index a source; several sources are blended, and one sample of each is out of reach (upstream's length rule)."""
    files = [open_source(source) for source in sources]
    weights = weights_of(sources, np.cumsum)
    parts: list[Windows] = []
    orders: list[Listed] = []
    for file, weight in zip(files, weights.tolist()):
        samples, windows = (_packed if order.packing == "packed" else _overflowing)(order, file, seq_len, weight)
        parts.append(windows)
        orders.append(Listed(samples, max(0, len(samples) - 1)))
    if len(files) == 1:
        return orders[0], parts[0]
    weights = weights / weights.sum()  # upstream normalises twice
    return blended(orders, blend.by_weight(weights, sum(len(o) for o in orders)), wrap=True), join(parts)


def _packed(order: NeoxOrder, file: TokenFile, seq_len: int, weight: float) -> tuple[NDArray[Any], Windows]:
    maps = index.build(neox_index_plan(order, file, seq_len, weight), file.lengths, order.seed)
    return maps.shuffle_idx, StreamWindows(file, maps, seq_len, 1)


def _overflowing(order: NeoxOrder, file: TokenFile, seq_len: int, weight: float) -> tuple[NDArray[Any], Windows]:
    wanted = neox_request(order, weight)
    if order.packing == "unpacked":
        raise PretraceError("GPT-NeoX's `unpacked` needs a file of labels beside the tokens (every document that has a label is "
                            "a sample), and pretrace reads no labels", "order.packing",
                            "for rows of one document each: pretrace data prepare (wrap), then the order rows")  # fmt: skip
    if order.version == "v1.0":
        raise PretraceError(f"GPT-NeoX v1.0 has `packed` only, {order.packing} came later", "order.version", "use head")
    if wanted is None:
        raise PretraceError(f"{order.packing} is filled up to a number of samples, and none is declared", "order.num_samples",
                            "declare it (updates * global batch)")  # fmt: skip
    n = len(part_of(file, order.split, order.part, "neox"))
    maps = overflow.build(file.lengths[:n], seq_len, wanted, order.seed, chop=order.allow_chopped)
    return overflow.positions(maps), overflow.OverflowWindows(file, maps, seq_len)


def neox_request(order: NeoxOrder, weight: float) -> int | None:
    """Samples asked of one source: ceil(n * w * 1.005) with the surplus, ceil(n * w) without."""
    if order.num_samples is None:
        return None
    return math.ceil(order.num_samples * weight * 1.005) if order.surplus else math.ceil(order.num_samples * weight)


def neox_index_plan(order: NeoxOrder, file: TokenFile, seq_len: int, weight: float) -> IndexPlan:
    """The plan of one source.

    Raises
    ------
    PretraceError
        If the order packs in another way than `packed`: its maps are not a plan in numbers.
    """
    if order.packing != "packed":
        raise PretraceError(f"the maps of {order.packing} are made by walking over the documents, they are not kept as files",
                            "order.packing", "ask the order itself (`pretrace data show`)")  # fmt: skip
    documents = part_of(file, order.split, order.part, "neox")
    wanted = neox_request(order, weight)
    return index.neox_plan(file.n_tokens_of(documents), documents, seq_len, wanted, order.version)
