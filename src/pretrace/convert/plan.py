"""A conversion as a value: what is read, what is written, and what is lost, before anything is.

The plan is complete: writing it makes no further choice. Its digest names the work, so that a stopped conversion goes on only
with the same source and the same request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pretrace.checkpoint.layout import Layout, StoreLayout
from pretrace.checkpoint.layouts import layout_of
from pretrace.checkpoint.names import is_state
from pretrace.checkpoint.optimizer_names import PREFIX, weights_of
from pretrace.checkpoint.view import StateView
from pretrace.checkpoint.vocabulary import is_tall, with_rows
from pretrace.checkpoint.widened import with_masters
from pretrace.checkpoint.write_options import Adam, WriteOptions, plain_options
from pretrace.convert.cast import FLOATS, CastView
from pretrace.convert.request import Request
from pretrace.convert.source import Source
from pretrace.convert.units import Work, work_of
from pretrace.digest import digest_of
from pretrace.dtypes import dtype
from pretrace.errors import PretraceError
from pretrace.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of the target: where it comes from, and what is done to it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    move: str  # '' where it is the same tensor
    files: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Everything that the conversion will do."""

    source: Source
    request: Request
    spec: ModelSpec  # of the target: its rows of vocabulary
    wanted: StateView  # canonical, cast and padded: what reading the target back has to give
    layout: Layout | StoreLayout
    work: Work
    losses: tuple[str, ...]  # what the target does not hold, in words
    notes: tuple[str, ...]  # what is not as a reader might expect

    @property
    def rows(self) -> tuple[Row, ...]:
        """The mapping."""
        sources = self.layout.sources
        made = []
        for name in self.layout.names:
            info = sources.info(name)
            from_, move = sources.source(name)
            runs = self.layout.parts.get(name, (name,))
            files = tuple(dict.fromkeys(path for run in runs for path, _ in self.work.places.get(run, ())))
            move = ", ".join(dict.fromkeys(move.split(", ")))
            made.append(Row(name, info.dtype, info.shape, from_, move, files))
        return tuple(made)

    @property
    def digest(self) -> str:
        """Of source, request and model: what a stopped conversion has to share to be gone on with."""
        stamps = {file: asdict(stamp) for file, stamp in self.source.stamps.items()}
        return digest_of({"source": self.source.path, "stamps": stamps, "request": self.request.model_dump(mode="json"),
                          "model": self.spec.model_dump(mode="json"), "version": 2})  # fmt: skip

    @property
    def agreement(self) -> str:
        """Of what is written: several writers have to share it. Each may read a copy of the source of its own."""
        sources = self.layout.sources
        tensors = [[name, sources.info(name).dtype, list(sources.info(name).shape)] for name in self.layout.names]
        asked = {"request": self.request.model_dump(mode="json"), "model": self.spec.model_dump(mode="json")}
        return digest_of({"tensors": tensors, "bytes": self.layout.size_bytes, "step": self.source.step, **asked})


def plan(source: Source, request: Request) -> Plan:
    """Plans a conversion from headers alone.

    Raises
    ------
    PretraceError
        If the target has no place for the model, or the request does not fit it.
    """
    view, spec, padding = padded(source.view, source.model.spec, request.vocab_rows)
    has_state = any(name.startswith(PREFIX) for name in view.names())
    view = view if request.state == "keep" else weights_of(view)
    if request.to == "neox" and not _stays_float32(view, request):
        view = with_masters(
            view
        )  # ZeRO's files hold masters whatever the source has: the weights before they are rounded
    wanted: StateView = view if request.dtype == "keep" else CastView(view, request.dtype)
    layout = _layout(wanted, spec, request, source)
    lost = _losses(source, request, layout, wanted, has_state)
    assumed = tuple(f"assumed {text}" for text in source.model.assumed)
    notes = (*source.notes, *padding, *_one_dtype(wanted, request), *layout.notes, *assumed)
    return Plan(source, request, spec, wanted, layout, work_of(layout), lost, notes)


def _stays_float32(view: StateView, request: Request) -> bool:
    kinds = {request.dtype} if request.dtype != "keep" else {view.info(n).dtype for n in weights_of(view).names()}
    return kinds == {"float32"}


def _layout(wanted: StateView, spec: ModelSpec, request: Request, source: Source) -> Layout | StoreLayout:
    try:
        return layout_of(request.to, wanted, spec, _options(wanted, request, source))
    except PretraceError as error:
        if error.where != "adam":
            raise
        mend = "say them (--adam LR,BETA1,BETA2,EPS,DECAY), or leave the optimizer's state out (--state drop)"
        raise PretraceError(error.what, "--adam", mend) from None


def _options(view: StateView, request: Request, source: Source) -> WriteOptions:
    changes: dict[str, Any] = {
        "step": source.step or 0, "shard_bytes": request.shard_bytes, "tensor_parallel": request.tensor_parallel,
        "data_parallel": request.data_parallel, "neox_linear1": request.linear1, "ocdbt": request.ocdbt,
        "adam": Adam(**request.adam.model_dump()) if request.adam is not None else None,
        "scan_axis": request.scan_axis, "fused_qkv": request.fused_qkv, "optimizer": request.state == "keep",
    }  # fmt: skip
    return plain_options(view, **changes)


def padded(view: StateView, spec: ModelSpec, asked: int | None) -> tuple[StateView, ModelSpec, tuple[str, ...]]:
    """The rows of vocabulary as asked for; else those that the source says are used (llm.c's header does), else all."""
    told = view.metadata().get("vocab_rows_used")
    used = told if type(told) is int and 0 < told < spec.vocab_size else spec.vocab_size
    rows = asked or used
    if rows == spec.vocab_size:
        return view, spec, ()
    if rows < used and not _zero_rows(view, rows):
        raise PretraceError(
            f"rows {rows} to {spec.vocab_size - 1} of the vocabulary are not padding: they hold numbers", "--pad-vocab",
            "cut no row that a tokenizer can ask for",
        )  # fmt: skip
    said = f"{abs(rows - spec.vocab_size)} rows of " + ("zeros added" if rows > spec.vocab_size else "padding cut")
    if asked is None:
        said += f": the source says that {used} are used (--pad-vocab {spec.vocab_size} keeps them)"
    return with_rows(view, rows), spec.model_copy(update={"vocab_size": rows}), (f"vocabulary: {said}",)


def _zero_rows(view: StateView, start: int) -> bool:
    for name in filter(is_tall, view.names()):
        info = view.info(name)
        if view.read(name, start * info.shape[1], info.numel).any():
            return False
    return True


def _losses(
    source: Source, request: Request, layout: Layout | StoreLayout, view: StateView, has_state: bool
) -> tuple[str, ...]:
    lost = []
    if source.unknown:
        names = ", ".join(source.unknown[:3]) + (" ..." if len(source.unknown) > 3 else "")
        lost.append(f"{len(source.unknown)} stored tensors that no table knows ({names})")
    if has_state and request.state == "drop":
        lost.append("the optimizer's state, as asked (--state drop)")
    elif dropped := [n for n in layout.dropped if is_state(n)]:
        kinds = sorted({name.split(".")[1] for name in dropped if name.count(".")})
        raise PretraceError(
            f"{request.to} has no place for the optimizer's state ({', '.join(kinds)}; {len(dropped)} tensors)", "--state",
            "declare that it may be lost (--state drop), or choose a target that keeps it",
        )  # fmt: skip
    if request.dtype != "keep":
        narrower = [n for n in view.names() if _bits(source, n) > dtype(view.info(n).dtype).bits]
        if narrower:
            lost.append(
                f"precision: {len(narrower)} tensors are rounded to {request.dtype} (the report counts what changed)"
            )
    return tuple(lost)


def _bits(source: Source, name: str) -> int:
    return dtype(source.view.info(name).dtype).bits if name in source.view.names() else 0


def _one_dtype(view: StateView, request: Request) -> tuple[str, ...]:
    kinds = sorted({view.info(n).dtype for n in view.names() if not is_state(n) and view.info(n).dtype in FLOATS})
    if len(kinds) < 2:
        return ()
    return (f"the weights have several dtypes ({', '.join(kinds)}), kept as they are; --dtype makes them one",)
