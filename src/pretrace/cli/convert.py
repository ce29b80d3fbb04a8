"""`pretrace convert SRC DST --to FORMAT`: the same model in another format, with proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pretrace.cli.convert_options import CONVERT, adam_of, bytes_of, refuse_strangers, request_of, way_of
from pretrace.cli.panels import Grouped
from pretrace.errors import PretraceError


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    said = "Write a checkpoint in another format, and prove that it is the same model."
    app.command("convert", cls=Grouped, help=said)(convert)


_TARGET, _NUMBERS, _PROOF = "What is written", "What may change a number", "How it is proved"
_NEOX, _JAX = "To neox", "To orbax and maxtext"
_MEND, _HOSTS = "Mending", "Several hosts"


def convert(
    context: typer.Context,
    paths: list[str] = typer.Argument(..., help="SRC DST; with --merge the parts; with --repair the target."),
    to: str = typer.Option("", help="hf, neox, dcp, orbax, maxtext, nanogpt or llmc.", rich_help_panel=_TARGET),
    plan: bool = typer.Option(
        False, "--plan", help="Print mapping, sizes and what will be lost; write nothing.", rich_help_panel=_TARGET
    ),
    shard_size: str = typer.Option("", help="At most so many bytes in a file (5GB, 500MB).", rich_help_panel=_TARGET),
    dtype: str = typer.Option("keep", help="keep, float32, bfloat16 or float16.", rich_help_panel=_NUMBERS),
    pad_vocab: int = typer.Option(0, help="Rows of the vocabulary; 0: those that are used.", rich_help_panel=_NUMBERS),
    state: str = typer.Option(
        "keep", help="Optimizer moments, masters and step: keep or drop.", rich_help_panel=_NUMBERS
    ),
    adam: str = typer.Option(
        "", help="LR,BETA1,BETA2,EPS,DECAY: what neox and nanogpt keep beside moments.", rich_help_panel=_NUMBERS
    ),
    model: Path = typer.Option(
        None, help="A config.json that says what the source does not.", rich_help_panel=_NUMBERS
    ),
    probe: str = typer.Option("", help="A text, or ids (.npy), on which both sides are asked.", rich_help_panel=_PROOF),
    logits: bool = typer.Option(
        True, "--logits/--no-logits", help="Prove logits and loss too; needs torch.", rich_help_panel=_PROOF
    ),
    damaged: bool = typer.Option(
        False, "--damaged", help="Go on although the source is damaged; it is recorded.", rich_help_panel=_PROOF
    ),
    tp: int = typer.Option(1, help="Tensor-parallel ranks.", rich_help_panel=_NEOX),
    dp: int = typer.Option(
        1, help="Data-parallel ranks that ZeRO-1 cuts the optimizer's state over.", rich_help_panel=_NEOX
    ),
    linear1: bool = typer.Option(
        True, "--linear1/--no-linear1", help="Names of today's code, or of releases to 2.0.", rich_help_panel=_NEOX
    ),
    ocdbt: bool = typer.Option(
        True, "--ocdbt/--no-ocdbt", help="An OCDBT database, or zarr chunks as files.", rich_help_panel=_JAX
    ),
    scan_layers: bool = typer.Option(
        True, "--scan-layers/--no-scan-layers", help="maxtext: layers stacked or apart.", rich_help_panel=_JAX
    ),
    scan_axis: int = typer.Option(
        None, help="maxtext: the axis on which layers are stacked; 1 unless said.", rich_help_panel=_JAX
    ),
    fused_qkv: bool = typer.Option(
        True, "--fused-qkv/--no-fused-qkv", help="maxtext, GPT-3: q, k, v in one array.", rich_help_panel=_JAX
    ),
    merge: bool = typer.Option(
        False, "--merge", help="Join the folders of one save that went to separate disks.", rich_help_panel=_MEND
    ),
    out: Path = typer.Option(None, help="With --merge: the folder to make.", rich_help_panel=_MEND),
    repair: bool = typer.Option(
        False, "--repair", help="Write only what a checkpoint lacks, from another copy.", rich_help_panel=_MEND
    ),
    from_: str = typer.Option("", "--from", help="With --repair: the source.", rich_help_panel=_MEND),
    hosts: int = typer.Option(
        0, help="Writers side by side; 0: as torchrun or SLURM say, else one.", rich_help_panel=_HOSTS
    ),
    host: int = typer.Option(0, help="Which writer this is, counted from 0.", rich_help_panel=_HOSTS),
    run_id: str = typer.Option("", help="The same for all writers of one start.", rich_help_panel=_HOSTS),
    wait: float = typer.Option(60.0, help="Seconds that writers wait to see each other.", rich_help_panel=_HOSTS),
    threads: int = typer.Option(0, help="0: the cores of the machine, four at most."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Exit 0: converted and proved. Exit 1: the proof failed. Exit 2: it could not be done. No target then."""
    way = way_of(merge=merge, repair=repair)
    refuse_strangers(context, way, to)
    if way != CONVERT:
        _mend(paths, out, from_, _threads(threads), model, merge=merge, damaged=damaged, as_json=as_json)
        return
    source, target = _two(paths)
    from pretrace.convert.together import from_environment

    together = from_environment(hosts, host, run_id, wait)
    axis = (1 if scan_axis is None else scan_axis) if scan_layers else None
    request = request_of({
        "to": to, "dtype": dtype, "shard_bytes": bytes_of(shard_size), "tensor_parallel": tp, "data_parallel": dp,
        "linear1": linear1, "ocdbt": ocdbt and together.hosts == 1, "scan_axis": axis, "fused_qkv": fused_qkv,
        "vocab_rows": pad_vocab or None, "state": state, "adam": adam_of(adam),
    })  # fmt: skip
    if plan:
        _plan(source, request, model, damaged=damaged, as_json=as_json)
        return
    from pretrace.convert.run import Settings

    settings = Settings(_threads(threads), probe, logits, damaged, model, together)
    _convert(source, target, request, settings, as_json=as_json)


def _two(paths: list[str]) -> tuple[str, Path]:
    if len(paths) != 2:
        raise PretraceError(
            f"{len(paths)} paths are named", " ".join(paths), "name a source and a target: convert SRC DST"
        )
    if not paths[0] or not paths[1]:
        raise PretraceError("a path is empty", "", "name a source and a target: convert SRC DST")
    return paths[0], Path(paths[1])


def _threads(threads: int) -> int:
    import os

    return threads if threads > 0 else min(4, os.cpu_count() or 1)


def _plan(source: str, request: Any, model: Path | None, *, damaged: bool, as_json: bool) -> None:
    from pretrace.cli.console import print_json, say
    from pretrace.convert.plan import plan
    from pretrace.convert.source import open_source
    from pretrace.convert.words import plan_lines

    opened = open_source(source, model, unknown_may_go=damaged)
    try:
        made = plan(opened, request)
        if as_json:
            print_json({"tensors": len(made.rows), "bytes": made.layout.size_bytes, "losses": made.losses, "notes": made.notes,
                        "model": made.spec, "mapping": made.rows, "digest": made.digest})  # fmt: skip
            return
        for line in plan_lines(made):
            say(line)
    finally:
        opened.close()


def _convert(source: str, target: Path, request: Any, settings: Any, *, as_json: bool) -> None:
    from pretrace.checkpoint.give_back import one_arena
    from pretrace.cli.console import print_json, say
    from pretrace.convert.run import convert as run
    from pretrace.convert.words import result_lines

    one_arena()  # here, where the process is ours: a library does not tune its caller's allocator
    with _Bars(str(target)) as bars:
        made = run(source, target, request, settings, bars.tell)
    if made is None:
        say(
            f"WRITTEN   writer {settings.together.host} of {settings.together.hosts} did its share; writer 0 proves the whole"
        )
    elif as_json:
        print_json(made.summary())
    else:
        for line in result_lines(made):
            say(line)


def _mend(
    paths: list[str],
    out: Path | None,
    source: str,
    threads: int,
    model: Path | None,
    *,
    merge: bool,
    damaged: bool,
    as_json: bool,
) -> None:
    from pretrace.cli.console import print_json, say
    from pretrace.convert import words

    made: Any
    if merge:
        if out is None:
            raise PretraceError(
                "no folder is named for the result", "--out", "name one: convert --merge A B C D --out DST"
            )
        from pretrace.convert.merge import merge as run_merge

        with _Bars(str(out)) as bars:
            made = run_merge(paths, out, threads, damaged=damaged, advance=lambda n: bars.tell("merging", n))
        lines = words.merged_lines(made)
    else:
        if len(paths) != 1 or not source:
            raise PretraceError(
                "a target and its source are needed", " ".join(paths), "convert --repair TARGET --from SRC"
            )
        from pretrace.convert.repair import repair as run_repair

        with _Bars(paths[0]) as bars:
            made = run_repair(Path(paths[0]), source, threads, model=model, advance=lambda n: bars.tell("repairing", n))
        lines = words.repaired_lines(made, source)
    if as_json:
        print_json(made.summary())
        return
    for line in lines:
        say(line)


class _Bars:
    """One progress display after the other, as the work changes its name."""

    def __init__(self, where: str) -> None:
        self._where, self._name = where, ""
        self._bar: Any = None
        self._open: Any = None

    def tell(self, what: str, n: int, total: int = 0) -> None:
        """Counts `n` bytes of `what`."""
        from pretrace.cli.console import progress

        if what != self._name:
            self._close()
            self._name = what
            self._open = progress(what, total / 1e6, "MB", self._where)
            self._bar = self._open.__enter__()
        if self._bar is not None:
            self._bar.advance(n / 1e6)

    def _close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
