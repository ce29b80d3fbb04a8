"""The options of `pretrace convert`: which of them belongs to what, and the request that they make.

An option that does not belong to what is asked is refused: what is ignored in silence is taken for done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrace.errors import PretraceError

if TYPE_CHECKING:
    import typer

    from pretrace.convert.request import Request

CONVERT, MERGE, REPAIR = "a conversion", "--merge", "--repair"
_ALL = (CONVERT, MERGE, REPAIR)


@dataclass(frozen=True, slots=True)
class Belongs:
    """Where one option counts."""

    flag: str
    field: str = ""  # of `Request`, if it becomes one
    targets: tuple[str, ...] = ()  # formats; none: all of them
    ways: tuple[str, ...] = (CONVERT,)


_JAX, _SHARDS = ("orbax", "maxtext"), ("hf", "dcp", "orbax", "maxtext")
OPTIONS: dict[str, Belongs] = {
    "to": Belongs("--to", "to"),
    "out": Belongs("--out", ways=(MERGE,)),
    "from_": Belongs("--from", ways=(REPAIR,)),
    "plan": Belongs("--plan"),
    "dtype": Belongs("--dtype", "dtype"),
    "shard_size": Belongs("--shard-size", "shard_bytes", _SHARDS),
    "pad_vocab": Belongs("--pad-vocab", "vocab_rows"),
    "state": Belongs("--state", "state"),
    "adam": Belongs("--adam", "adam", ("neox", "nanogpt")),
    "tp": Belongs("--tp", "tensor_parallel", ("neox",)),
    "dp": Belongs("--dp", "data_parallel", ("neox",)),
    "linear1": Belongs("--linear1", "linear1", ("neox",)),
    "ocdbt": Belongs("--ocdbt", "ocdbt", _JAX),
    "scan_layers": Belongs("--scan-layers", "", ("maxtext",)),
    "scan_axis": Belongs("--scan-axis", "scan_axis", ("maxtext",)),
    "fused_qkv": Belongs("--fused-qkv", "fused_qkv", ("maxtext",)),
    "model": Belongs("--model", ways=(CONVERT, REPAIR)),
    "probe": Belongs("--probe"),
    "logits": Belongs("--logits"),
    "damaged": Belongs("--damaged", ways=(CONVERT, MERGE)),
    "threads": Belongs("--threads", ways=_ALL),
    "hosts": Belongs("--hosts"),
    "host": Belongs("--host"),
    "run_id": Belongs("--run-id"),
    "wait": Belongs("--wait"),
}


def way_of(*, merge: bool, repair: bool) -> str:
    """Which of three things is asked."""
    if merge and repair:
        raise PretraceError("--merge and --repair are two things", "--merge --repair", "do one after the other")
    return MERGE if merge else REPAIR if repair else CONVERT


def refuse_strangers(context: typer.Context, way: str, to: str) -> None:
    """Refuses options on the command line that do not belong to what is asked.

    Raises
    ------
    PretraceError
        That names the first of them, and what it is for.
    """
    for name, one in OPTIONS.items():
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        if way not in one.ways:
            raise PretraceError(f"{one.flag} is for {' and '.join(one.ways)}, not for {way}", one.flag, "leave it out")
        if one.targets and to and to not in one.targets:
            raise PretraceError(f"{one.flag} is for {', '.join(one.targets)}, not {to}", one.flag, "leave it out")


def request_of(values: dict[str, Any]) -> Request:
    """The request of these values, by field; faults are told by the options that a person wrote."""
    from pretrace.convert.request import TARGETS, Request
    from pretrace.spec import build

    if not values["to"]:
        raise PretraceError("no target format is named", "--to", f"choose one of {', '.join(TARGETS)}")
    try:
        return build(Request, values, where="convert")
    except PretraceError as error:
        field = error.what.partition(":")[0]
        flag = next((one.flag for one in OPTIONS.values() if one.field and one.field == field.partition(".")[0]), "")
        if not flag:
            raise
        raise PretraceError(flag + error.what.removeprefix(field), flag, error.mend) from None


def adam_of(text: str) -> dict[str, Any] | None:
    """LR,BETA1,BETA2,EPS,DECAY."""
    if not text:
        return None
    try:
        lr, first, second, eps, decay = map(float, text.split(","))
    except ValueError:
        raise PretraceError(
            f"{text!r} is no LR,BETA1,BETA2,EPS,DECAY", "--adam", "write 6e-4,0.9,0.95,1e-8,0.1"
        ) from None
    return {"lr": lr, "betas": [first, second], "eps": eps, "weight_decay": decay}


_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def bytes_of(text: str) -> int | None:
    """A size: 5GB, 500MB, 1GiB or a number of bytes; None for ''."""
    number = text.rstrip("BbKkMmGgTtIi")
    unit = text[len(number) :].lower()
    if not text:
        return None
    try:
        return int(float(number) * _UNITS[unit if unit != "b" else ""])
    except (ValueError, KeyError, OverflowError):
        raise PretraceError(f"{text!r} is no size", "--shard-size", "write 5GB, 500MB or a number of bytes") from None
