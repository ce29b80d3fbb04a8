"""`pretrace data show | where | repeats | check | compare`: what can be asked of an order and of token files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pretrace.errors import EXIT_FINDING, EXIT_OK, PretraceError

_DATA = typer.Option(..., "--data", help="A recipe, a run's folder, or a DataSpec (YAML).")
_BATCH = typer.Option(0, "--global-batch", help="Samples an update; from the recipe's step if it has one.")
_TOKENIZER = typer.Option("", "--tokenizer", help="tokenizer.json, its folder, or a .model: to show and search text.")
_JSON = typer.Option(False, "--json", help="Print one JSON object.")


def register(room: typer.Typer) -> None:
    """Adds the commands to `pretrace data`."""
    for name, command in (
        ("show", show),
        ("where", where),
        ("repeats", repeats),
        ("check", check),
        ("compare", compare),
    ):
        room.command(name, help=(command.__doc__ or "").splitlines()[0])(command)


def _order(path: Path, global_batch: int) -> tuple[Any, int]:
    """The order of a file or run, and the samples of an update."""
    from pretrace.cli.data import _spec
    from pretrace.data.order import DataSpec, open_order
    from pretrace.spec import build

    file = path / "recipe.yaml" if path.is_dir() else path
    plain = _spec(file)
    if not isinstance(plain, dict):
        raise PretraceError(f"{file.name} holds no keys", str(file), "name a recipe or a DataSpec")
    data: Any = plain.get("data", plain)
    if "model" in plain:  # a whole recipe, with its interpolations
        from pretrace.recipe import load

        recipe = load(file)
        data, global_batch = recipe.data.model_dump(), global_batch or recipe.step.topology.global_batch
    if global_batch < 1:
        raise PretraceError("how many samples make an update is not said", str(file), "give --global-batch")
    return open_order(build(DataSpec, data, where=str(file))), global_batch


def _tokenizer(path: str) -> Any:
    from pretrace.data.tokenizer import load

    return load(path) if path else None


def show(
    data: Path = _DATA,
    step: int = typer.Option(..., min=0, help="Updates done before: step 0 is the first update's data."),
    global_batch: int = _BATCH,
    tokenizer: str = _TOKENIZER,
    chars: int = typer.Option(200, help="Characters of text to show of each sample."),
    as_json: bool = _JSON,
) -> None:
    """What one update reads: documents, spans, text, hash."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import answers

    order, batch = _order(data, global_batch)
    shown = answers.show(order, step, batch, _tokenizer(tokenizer))
    if as_json:
        print_json({"step": step, "global_batch": batch, "samples": shown})
        return
    say(f"step {step:,} reads positions {step * batch:,}..{(step + 1) * batch - 1:,} of {len(order):,}")
    for one in shown:
        spans = ", ".join(f"{s.document}[{s.start}:{s.stop}]" for s in one.documents[:4])
        more = f" and {len(one.documents) - 4} more" if len(one.documents) > 4 else ""
        say(f"  {one.position:,}  sample {one.sample:,}  {spans}{more}  {one.tokens_sha256[:12]}")
        if one.text is not None:
            say(f"      {one.text[:chars]!r}")


def where(
    data: Path = _DATA,
    document: int = typer.Option(-1, help="Number of the document in its file."),
    source: int = typer.Option(0, help="Number of the source in a blend."),
    text: str = typer.Option("", help="A text of four tokens or more; needs --tokenizer."),
    global_batch: int = _BATCH,
    tokenizer: str = _TOKENIZER,
    as_json: bool = _JSON,
) -> None:
    """The updates that saw a document or a text. Exit 1: none did."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import answers

    if (document < 0) == (not text):
        raise PretraceError("say what to look for", "", "give --document or --text")
    order, batch = _order(data, global_batch)
    if text:
        loaded = _tokenizer(tokenizer)
        if loaded is None:
            raise PretraceError("a text is searched by its ids", "--text", "give --tokenizer")
        seen = answers.where_text(order, text, loaded, batch)
    else:
        seen = answers.where_document(order, document, batch, source)
    if as_json:
        print_json({"steps": seen.steps, "positions": seen.positions, "global_batch": batch})
    else:
        what = repr(text[:60]) if text else f"document {document:,}"
        say(f"{what} is read in {len(seen.steps):,} steps: {', '.join(f'{s:,}' for s in seen.steps[:30])}"
            + (" ..." if len(seen.steps) > 30 else "") if seen.steps else f"{what} is never read")  # fmt: skip
    raise typer.Exit(EXIT_OK if seen.steps else EXIT_FINDING)


def repeats(data: Path = _DATA, global_batch: int = _BATCH, as_json: bool = _JSON) -> None:
    """Per update: the share of its tokens that an earlier update read in another pass over the corpus."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import answers

    order, batch = _order(data, global_batch)
    curve = answers.repeat_curve(order, batch)
    if as_json:
        print_json({"share": curve.share, "first_step": curve.first_step, "global_batch": batch})
        return
    if curve.first_step is None:
        say(f"no update of {len(curve.share):,} repeats a document")
        return
    say(f"the first repeat is in step {curve.first_step:,} of {len(curve.share):,}; repeated share of the tokens:")
    for tenth in range(11):
        step = min(len(curve.share) - 1, len(curve.share) * tenth // 10)
        say(f"  step {step:>9,}  {100 * curve.share[step]:5.1f}%")


def check(
    prefix: Path = typer.Argument(..., help="Prefix of a .bin/.idx pair."),
    eod: int = typer.Option(None, help="Id that is declared to end every document."),
    eos: int = typer.Option(None, help="The tokenizer's own end id, if it is another one."),
    pad: int = typer.Option(None, help="Id that is declared as padding."),
    vocab_size: int = typer.Option(None, help="Ids of the tokenizer."),
    preshuffled: bool = typer.Option(None, help="Whether it is declared to be in training order."),
    data: Path = typer.Option(None, "--data", help="A recipe or DataSpec whose order is checked on this file."),
    maps: list[str] = typer.Option(
        [], help="Folder with doc_idx, sample_idx, shuffle_idx; twice: two nodes are compared."
    ),
    as_json: bool = _JSON,
) -> None:
    """Findings on a token file, its order and its maps, against what is declared. Exit 1: an error among them."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import check as checks
    from pretrace.findings import CheckNotRun, outcome_of

    declared = checks.Declared(eod, vocab_size, preshuffled, eos, pad)
    findings, file = checks.check_pair(prefix, declared)
    missing = [CheckNotRun(name, "nothing is declared: give --" + option) for name, option, value in
               (("eod rate", "eod", eod), ("vocabulary bound", "vocab-size", vocab_size)) if value is None]  # fmt: skip
    if file is not None:
        findings += _order_findings(file, data, maps, missing)
    outcome = outcome_of(findings)
    if as_json:
        print_json({"outcome": outcome, "findings": findings, "checks_not_run": missing})
    else:
        say(
            f"{outcome.upper()}   {prefix}" + (f", {file.n_tokens:,} tokens in {len(file):,} sequences" if file else "")
        )
        for one in findings:
            say(f"  {one.severity:<8}{one.code:<22}{one.what}")
            if one.mend and one.severity != "info":
                say(f"          mend                  {one.mend}")
        for absent in missing:
            say(f"  not checked: {absent.check} ({absent.why})")
    raise typer.Exit(EXIT_OK if outcome == "pass" else EXIT_FINDING)


def _order_findings(file: Any, data: Path | None, maps: list[str], missing: list[Any]) -> list[Any]:
    from pretrace.cli.data import _spec
    from pretrace.data import check_maps as checks
    from pretrace.data.families import MegatronOrder, NeoxOrder
    from pretrace.data.order import DataSpec
    from pretrace.findings import CheckNotRun
    from pretrace.spec import build

    findings = checks.compare_folders(maps) if len(maps) > 1 else []
    if data is None:
        missing.append(CheckNotRun("order and maps", "no order is declared: give --data"))
        return findings
    plain = _spec(data)
    spec = build(DataSpec, plain.get("data", plain) if isinstance(plain, dict) else plain, where=str(data))
    if not isinstance(spec.order, (NeoxOrder, MegatronOrder)):
        missing.append(CheckNotRun("order and maps", f"the order {spec.order.family} has no maps"))
        return findings
    findings += checks.check_order(file, spec.order, spec.seq_len)
    for folder in maps[:1]:
        findings += checks.check_maps(file, spec.order, spec.seq_len, folder)
    return findings


def compare(
    a: Path = typer.Argument(..., help="A recipe, a run's folder, or a DataSpec (YAML)."),
    b: Path = typer.Argument(..., help="Another one."),
    global_batch: int = _BATCH,
    steps: int = typer.Option(0, help="Updates to compare; 0: all that both have."),
    as_json: bool = _JSON,
) -> None:
    """The first update whose tokens differ, and how much is equal. Exit 1: they differ."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.order import first_difference

    (left, batch), (right, other) = _order(a, global_batch), _order(b, global_batch)
    if batch != other:
        raise PretraceError(
            f"an update is {batch:,} samples in one and {other:,} in the other", "", "give --global-batch"
        )
    wanted = steps or max(len(left), len(right)) // batch
    found = first_difference(left, right, batch, wanted)
    if as_json:
        print_json({**{k: getattr(found, k) for k in found.__slots__}, "global_batch": batch})
    elif found.first_step is None:
        say(f"Same: {found.steps:,} updates read the same tokens in the same order.")
    else:
        say(f"Different from step {found.first_step:,} on, of {found.steps:,}.")
        for share, what in (
            (found.equal_batches, "of the updates are equal"),
            (found.equal_sets, "of the updates hold the same samples in some order"),
            (found.equal_samples, "of the positions are equal"),
            (found.common_samples, "of A's samples occur anywhere in B"),
        ):
            say(f"  {100 * share:5.1f}% {what}")
    raise typer.Exit(EXIT_OK if found.first_step is None else EXIT_FINDING)
