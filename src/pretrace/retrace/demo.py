"""The demo: one small case, made for real and then tried without looking at how it was made.

A reference is trained on the standard edition of the books with 8 virtual ranks, stored in fp16 and labelled "deduped". A second
run with an undisputed label is the sibling control. Then the case file is written and run like any other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pretrace.retrace.case as cases
from pretrace import __version__
from pretrace.digest import xxh3_of_file
from pretrace.errors import PretraceError, naming
from pretrace.executor import Workers, map_tasks
from pretrace.files import is_whole, read_json, write_json, write_text
from pretrace.recipe import Recipe
from pretrace.recipe.read import to_yaml as recipe_to_yaml
from pretrace.retrace.books import Editions, check_corpus, make_editions
from pretrace.retrace.case import Case, Decoys, Hypothesis, Reference, Sibling, Start
from pretrace.retrace.demo_recipe import FULL, QUICK, Size, benign, recipe, source
from pretrace.retrace.result import CaseResult
from pretrace.retrace.run import QUIET, Watch, run

Claim = Literal["standard", "deduped"]
_N_DECOYS = 19
_MARKER = "demo.txt"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Training:
    """One of the two runs that the case is about."""

    recipe: Recipe
    out: str
    tokenizer: str


def demo(
    out: str | Path,
    *,
    seed: int,
    claim: Claim,
    quick: bool = False,
    workers: int = 2,
    corpus: str | Path | None = None,
    keep_runs: bool = False,
    tell: Tell = lambda what: None,
    watch: Watch = QUIET,
) -> CaseResult:
    """Makes the case in `out` and runs it. What a finished demo left in `out` is removed first: nothing is precomputed.

    A demo that was stopped goes on with its kept runs when it is asked for with the same arguments. The vectors of the runs (some
    500 MB) are removed at the end unless `keep_runs`.

    Raises
    ------
    PretraceError
        If the corpus cannot be read or is empty, or `out` cannot be written or holds other things.
    """
    out = Path(out).resolve()
    check_corpus(corpus)  # first: a wrong path costs no earlier demo
    asked = _asked(seed=seed, claim=claim, quick=quick, corpus=corpus)
    if make_room(out, asked):
        tell("going on with a demo that was stopped")
    with Workers(workers) if workers else nullcontext(0) as pool:
        if isinstance(pool, Workers):
            pool.warm(_import_trainer, None)  # torch is imported while this process reads the books
        path = make_case(out, seed=seed, claim=claim, quick=quick, workers=pool, corpus=corpus, tell=tell)
        result = run(cases.load(path), out, workers=pool, watch=watch)
    if not keep_runs:
        shutil.rmtree(out / "runs", ignore_errors=True)
        result = replace(result, files={})
    _mark(out, asked, finished=True)
    return result


def make_case(
    out: Path,
    *,
    seed: int,
    claim: Claim,
    quick: bool = False,
    workers: int | Workers = 2,
    corpus: str | Path | None = None,
    tell: Tell = lambda what: None,
) -> Path:
    """Makes editions, reference and sibling in `out`, which goes if the corpus will not do; returns the case file.

    Raises
    ------
    PretraceError
        If the corpus cannot be read or is empty, or `out` cannot be written.
    """
    size = QUICK if quick else FULL
    tell("reading the books, removing near-duplicates, training a tokenizer")
    try:
        editions = make_editions(out / "data", vocab_size=size.vocab_size, corpus=corpus)
        _long_enough(editions, size, corpus)
    except PretraceError:
        shutil.rmtree(out, ignore_errors=True)  # a demo begins anew each time: a part of one is of no use
        raise
    tell("training the reference on the standard edition, and a sibling")
    truth = recipe(size, editions.standard, editions.vocab_size, name="reference", order_seed=seed, init_seed=seed)
    beside = recipe(
        size, editions.standard, editions.vocab_size, name="sibling", order_seed=seed + 1, init_seed=seed + 1
    )
    _train({"reference": truth, "sibling": beside}, out, editions, workers)
    return _write_case(out, size, editions, truth, beside, seed, claim)


def _asked(*, seed: int, claim: Claim, quick: bool, corpus: str | Path | None) -> dict[str, Any]:
    """What decides a demo's files: a stopped one goes on only where all of it is the same."""
    text = xxh3_of_file(Path(corpus)) if corpus else ""
    return {
        "seed": seed,
        "claim": claim,
        "quick": quick,
        "corpus": text,
        "pretrace": __version__,
        "torch": version("torch"),
    }


def make_room(out: Path, asked: dict[str, Any]) -> bool:
    """Whether `out` holds a stopped demo of the same arguments, to go on with; anything else of a demo's is removed.

    Raises
    ------
    PretraceError
        If the folder holds other things than a demo, or cannot be written.
    """
    marker = out / _MARKER
    with naming(out, "making the demo's folder"):
        if out.is_dir() and any(out.iterdir()) and not marker.is_file():
            raise PretraceError("the folder holds other things than a demo", str(out), "choose an empty folder")
        if goes_on := _stopped(marker) == asked:
            return goes_on
        if marker.is_file():
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
    _mark(out, asked, finished=False)
    return False


def _mark(out: Path, asked: dict[str, Any], *, finished: bool) -> None:
    about = "made by `pretrace demo`, which removes this folder when it is run again"
    write_json(out / _MARKER, {"about": about, "finished": finished, "asked": asked})


def _stopped(marker: Path) -> dict[str, Any] | None:
    """What the demo of this marker was asked for; None where there is none, or it came to its end."""
    try:
        found = read_json(marker)
        return None if found["finished"] else dict(found["asked"])
    except (PretraceError, KeyError, TypeError, ValueError):
        return None  # an older demo's marker, or a torn one: it begins anew


def _import_trainer(_: None) -> None:
    import pretrace.train  # noqa: F401


def _long_enough(editions: Editions, size: Size, corpus: str | Path | None) -> None:
    needed = size.horizon * size.global_batch * size.seq_len
    if editions.deduped.tokens < needed:
        raise PretraceError(
            f"the deduplicated corpus has {editions.deduped.tokens:,} tokens, the demo reads {needed:,}",
            str(corpus or "the embedded books"), "use a larger corpus" + ("" if size is QUICK else ", or --quick"),
        )  # fmt: skip


def _train(recipes: dict[str, Recipe], out: Path, editions: Editions, workers: int | Workers) -> None:
    # Of a stopped demo: what came to its end is kept, a part of a run is made again.
    todo = {name: r for name, r in recipes.items() if not is_whole(out / name / "checkpoints" / f"step-{r.steps:08d}")}
    for name in todo:
        shutil.rmtree(out / name, ignore_errors=True)
    tasks = {name: Training(r, str(out / name), str(editions.tokenizer)) for name, r in todo.items()}
    for result in map_tasks(train, tasks, workers=workers):
        result.get()


def train(task: Training) -> int:
    """Trains one run on disk. Called in a worker process."""
    from pretrace.train import run

    return run(task.recipe, task.out, tokenizer=Path(task.tokenizer)).steps


def _write_case(
    out: Path, size: Size, editions: Editions, truth: Recipe, beside: Recipe, seed: int, claim: Claim
) -> Path:
    # What is published says "deduped" whatever the claim to be tried: the label is the thing in question.
    label = truth.with_values({"data.sources": [source(editions.deduped).model_dump()]}, where="the label")
    write_text(out / "published.yaml", recipe_to_yaml(label.model_copy(update={"name": "books-deduped"})))
    write_text(out / "sibling.yaml", recipe_to_yaml(beside))
    editing = {e.name: {"data.sources": [source(e).model_dump()]} for e in (editions.standard, editions.deduped)}
    settings = benign(size)
    case = Case(
        claim=claim, recipe="published.yaml",
        reference=Reference(checkpoints="reference/checkpoints", dtype="float16"),
        hypotheses={name: Hypothesis(edits=edits) for name, edits in editing.items()},
        base=next(iter(settings)), benign=settings,
        decoys=Decoys(count=_N_DECOYS, seed_key="data.order.seed", first_seed=seed + 1000),
        sibling=Sibling(recipe="sibling.yaml", reference=Reference(checkpoints="sibling/checkpoints", dtype="float16")),
        no_sibling_because="", start=Start(step=0, burn_in=0), steps=size.steps, deciding_step=size.deciding_step,
    )  # fmt: skip
    write_text(out / "case.yaml", cases.to_yaml(case))
    return out / "case.yaml"
