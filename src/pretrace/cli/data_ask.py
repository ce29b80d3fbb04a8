"""`pretrace data show | where | repeats | check | compare`: what can be asked of an order and of token files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from pretrace.errors import EXIT_FINDING, EXIT_OK, PretraceError

_DATA = typer.Option(..., "--data", help="A recipe, a run's folder, or a DataSpec (`pretrace data init neox`).")
_BATCH = typer.Option(0, "--global-batch", min=0, help="Samples an update; from the recipe's step if it has one.")
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """An order and the updates that are asked about: those of the recipe, or all whole ones of the order."""

    order: Any
    global_batch: int
    updates: int


def _data(path: Path) -> tuple[Any, Any]:
    """The DataSpec of a file or run, and its recipe if it is one."""
    from pretrace.cli.data import _built, _spec

    file = path / "recipe.yaml" if path.is_dir() else path
    plain = _spec(file)
    if not isinstance(plain, dict):
        raise PretraceError(f"{file.name} holds no keys", str(file),
                            "name a recipe or a DataSpec; a complete example: pretrace data init neox")  # fmt: skip
    if "model" in plain:  # a whole recipe, with its interpolations
        from pretrace.recipe import load

        recipe = load(file)
        return _built("neox", file, recipe.data.model_dump()), recipe
    return _built("neox", file, plain.get("data", plain)), None


def _order(path: Path, global_batch: int) -> _Asked:
    from pretrace.data.order import open_order

    spec, recipe = _data(path)
    batch = global_batch or (recipe.step.topology.global_batch if recipe else 0)
    if batch < 1:
        raise PretraceError("how many samples make an update is not said", str(path), "give --global-batch")
    order = open_order(spec)
    updates = len(order) // batch
    if updates < 1:
        raise PretraceError(f"the order has {len(order):,} samples, one update takes {batch:,}", str(path),
                            "give a smaller --global-batch, or declare more samples")  # fmt: skip
    if recipe:
        updates = min(updates, recipe.steps * recipe.step.topology.global_batch // batch)
    return _Asked(order, batch, updates)


def _tokenizer(path: str) -> Any:
    from pretrace.data.tokenizer import load

    return load(path) if path else None


def show(
    data: Path = _DATA,
    step: int = typer.Option(..., min=0, help="Updates done before: step 0 is the first update's data."),
    global_batch: int = _BATCH,
    tokenizer: str = _TOKENIZER,
    chars: int = typer.Option(200, min=0, help="Characters of text to show of each sample."),
    as_json: bool = _JSON,
) -> None:
    """What one update reads: documents, spans, text, hash."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import answers

    asked = _order(data, global_batch)
    order, batch = asked.order, asked.global_batch
    if step >= asked.updates:
        last = f"{asked.updates:,} updates are made, the last is step {asked.updates - 1:,}"
        raise PretraceError(f"there is no step {step:,}: {last}", str(data), "ask for an earlier step")
    shown = answers.show(order, step, batch, _tokenizer(tokenizer))
    if as_json:
        print_json({"step": step, "global_batch": batch, "samples": shown})
        return
    say(f"step {step:,} reads positions {step * batch:,}..{(step + 1) * batch - 1:,} of {len(order):,}")
    for one in shown:
        spans = ", ".join(f"{s.document if s.document >= 0 else 'ids '}[{s.start}:{s.stop}]" for s in one.documents[:4])
        more = f" and {len(one.documents) - 4} more" if len(one.documents) > 4 else ""
        say(f"  {one.position:,}  sample {one.sample:,}  {spans}{more}  {one.tokens_sha256[:12]}")
        if one.text is not None:
            say(f"      {one.text[:chars]!r}")


def where(
    data: Path = _DATA,
    document: int = typer.Option(-1, help="Number of the document in its file."),
    source: int = typer.Option(0, help="Number of the source in a blend."),
    text: str = typer.Option("", help="A text, however it was cut into tokens; needs --tokenizer."),
    global_batch: int = _BATCH,
    tokenizer: str = _TOKENIZER,
    as_json: bool = _JSON,
) -> None:
    """The updates that saw a document or a text. Exit 1: none did."""
    from pretrace.cli.console import print_json, say
    from pretrace.data import answers

    if (document < 0) == (not text):
        raise PretraceError("say what to look for", "", "give --document or --text")
    asked = _order(data, global_batch)
    loaded = _tokenizer(tokenizer)
    if text and loaded is None:
        raise PretraceError("a text is searched by its ids", "--text", "give --tokenizer")
    if text:
        seen = answers.where_text(asked.order, text, loaded, asked.global_batch, updates=asked.updates)
    else:
        seen = answers.where_document(asked.order, document, asked.global_batch, source, updates=asked.updates)
    if as_json:
        print_json({"steps": seen.steps, "positions": seen.positions, "global_batch": asked.global_batch,
                    "updates": asked.updates})  # fmt: skip
    else:
        what = repr(text[:60]) if text else f"document {document:,}"
        steps = ", ".join(f"{s:,}" for s in seen.steps[:30]) + (" ..." if len(seen.steps) > 30 else "")
        say(
            f"{what} is read in {f'{len(seen.steps):,}' if seen.steps else 'none'} of {asked.updates:,} updates"
            + (f": steps {steps}" if steps else "")
        )
    raise typer.Exit(EXIT_OK if seen.steps else EXIT_FINDING)


def repeats(data: Path = _DATA, global_batch: int = _BATCH, as_json: bool = _JSON) -> None:
    """Per update: the share of its tokens that an earlier update read, in whatever pass over the corpus."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.repeats import repeat_curve

    asked = _order(data, global_batch)
    curve = repeat_curve(asked.order, asked.global_batch, asked.updates)
    if as_json:
        print_json({"share": curve.share, "first_step": curve.first_step, "global_batch": asked.global_batch,
                    "updates": asked.updates})  # fmt: skip
        return
    if curve.first_step is None:
        say(f"none of {asked.updates:,} updates reads a token again")
        return
    say(
        f"the first token read again is in step {curve.first_step:,} of {asked.updates:,}; share of the tokens read before:"
    )
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
    data: Path = typer.Option(
        None, "--data", help="A recipe, a run's folder or a DataSpec: its order is checked on this file."
    ),
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
        if file.n_tokens > checks.WHOLE_TOKENS:
            missing.append(CheckNotRun("every id", "the file is large: the sample above was looked at"))
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
    from pretrace.data import check_maps as checks
    from pretrace.data.families import MegatronOrder, NeoxOrder
    from pretrace.findings import CheckNotRun

    findings = checks.compare_folders(maps) if len(maps) > 1 else []
    if data is None:
        missing.append(CheckNotRun("order and maps", "no order is declared: give --data"))
        return findings
    spec, _ = _data(data)
    if not isinstance(spec.order, (NeoxOrder, MegatronOrder)):
        missing.append(CheckNotRun("order and maps", f"the order {spec.order.family} has no maps"))
        return findings
    number, named = checks.source_of(spec.sources, file.prefix)
    share = checks.share_of(spec.order, spec.sources, number)
    findings += [*named, *checks.check_order(file, spec.order, spec.seq_len, share)]
    for folder in maps[:1]:
        findings += checks.check_maps(file, spec.order, spec.seq_len, folder, share)
    return findings


def compare(
    a: Path = typer.Argument(..., help="A recipe, a run's folder, or a DataSpec (YAML)."),
    b: Path = typer.Argument(..., help="Another one."),
    global_batch: int = _BATCH,
    steps: int = typer.Option(0, min=0, help="Updates to compare; 0: all that either has."),
    as_json: bool = _JSON,
) -> None:
    """The first update whose tokens differ, and how much is equal. Exit 1: they differ."""
    from pretrace.cli.console import print_json, say
    from pretrace.data.order import first_difference

    left, right = _order(a, global_batch), _order(b, global_batch)
    if left.global_batch != right.global_batch:
        raise PretraceError(f"an update is {left.global_batch:,} samples in one and {right.global_batch:,} in the other", "",
                            "give --global-batch")  # fmt: skip
    wanted = steps or max(left.updates, right.updates)
    found = first_difference(left.order, right.order, left.global_batch, wanted)
    rules = left.order.spec.documents != right.order.spec.documents
    if as_json:
        print_json({**{k: getattr(found, k) for k in found.__slots__}, "global_batch": left.global_batch,
                    "rules_differ": rules})  # fmt: skip
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
    if rules and not as_json:
        say("  The rules at documents' ends differ: labels, attention or positions do, where the tokens are the same.")
    raise typer.Exit(EXIT_OK if found.first_step is None else EXIT_FINDING)
