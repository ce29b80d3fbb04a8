"""The three maps as .npy files, in upstream's dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pretrace.data.index as index
from pretrace.data.check_maps import plan_of
from pretrace.data.megatron import MegatronOrder
from pretrace.data.neox import NeoxOrder
from pretrace.data.tokenfile import open_pair
from pretrace.errors import PretraceError, naming
from pretrace.files import atomic_file
from pretrace.spec import build


def map_spec(
    order: str,
    *,
    num_samples: int,
    seed: int,
    split: str,
    part: str,
    version: str,
    extra_token: bool,
    keep_partial: bool,
) -> NeoxOrder | MegatronOrder:
    """The order spec of a single file; an empty split means the whole of it."""
    common = {"family": order, "num_samples": num_samples, "seed": seed, "part": part}
    if order == "neox":
        return build(
            NeoxOrder, {**common, "version": version, "split": split or None, "surplus": False}, where="data index"
        )
    if order == "megatron":
        return build(MegatronOrder, {**common, "split": split or "1,0,0", "extra_token": extra_token,
                                     "keep_partial": keep_partial, "pad_id": None}, where="data index")  # fmt: skip
    raise PretraceError(f"the order {order!r} has no maps", "--order", "use neox or megatron")


def write_maps(prefix: str | Path, order: NeoxOrder | MegatronOrder, seq_len: int, out: str | Path) -> dict[str, Any]:
    """Writes doc_idx.npy, sample_idx.npy and shuffle_idx.npy to the folder; each is whole or absent.

    Raises
    ------
    PretraceError
        If the pair is damaged, the part is empty, or the disk is full.
    """
    file = open_pair(prefix)
    plan = plan_of(file, order, seq_len)
    maps = index.build(plan, file.lengths, order.seed)
    out = Path(out)
    with naming(out, "writing"):
        out.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in ("doc_idx", "sample_idx", "shuffle_idx"):
        array = getattr(maps, name)
        with atomic_file(out / f"{name}.npy") as target:
            np.lib.format.write_array_header_1_0(target, np.lib.format.header_data_from_array_1_0(array))
            target.write(np.ascontiguousarray(array).data)  # numpy's own way hides that a disk is full
        files[f"{name}.npy"] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    return {"epochs": plan.epochs, "samples": plan.samples, "separate_last_epoch": plan.separate_last,
            "tokens_per_epoch": plan.tokens_per_epoch, "files": files, "out": str(out)}  # fmt: skip
