"""A tiny case on random documents: a one-block decoder, editions of a made-up corpus, everything in this process."""

from pathlib import Path

import numpy as np

import pretrace.retrace.case as cases
from pretrace.data.tokenfile import write_pair
from pretrace.digest import sha256_of_file
from pretrace.retrace.books import Edition
from pretrace.retrace.case import Case, Decoys, Hypothesis, Reference, Sibling, Start
from pretrace.retrace.demo_recipe import Size, benign, recipe, source
from pretrace.train import run as train

TINY = Size(64, 1, 32, 16, 1, (1, 2, 4), 4, 16)
FROM_ZERO = Start(step=0, burn_in=0)
STREAM = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": False}


def documents(n=120, seed=0):
    """Documents of 20 to 60 tokens below 64, each with its own favourite tokens."""
    rng = np.random.default_rng(seed)
    return [rng.choice(64, size=rng.integers(20, 60), p=rng.dirichlet(np.full(64, 0.2))) for _ in range(n)]


def edition(folder, name, docs):
    Path(folder).mkdir(parents=True, exist_ok=True)
    prefix = Path(folder) / name
    write_pair(prefix, docs, "uint16")
    return Edition(name, prefix, sha256_of_file(f"{prefix}.bin"), len(docs), sum(map(len, docs)))


def lab_recipe(ed, name="reference", order_seed=1, init_seed=1, edits=None):
    made = recipe(TINY, ed, 64, name=name, order_seed=order_seed, init_seed=init_seed)
    return made.with_values(edits or {})


def lab_case(
    folder,
    truth,
    hypotheses,
    claim,
    *,
    label=None,
    sibling=None,
    deciding_step=TINY.deciding_step,
    start=FROM_ZERO,
    steps=TINY.steps,
):
    """Trains the reference by `truth` and a sibling, and writes the case file."""
    folder = Path(folder)
    label = label or truth
    beside = sibling or truth.with_values({"data.order.seed": 77, "seeds.init": 77})
    train(truth, folder / "reference")
    train(beside, folder / "sibling")
    cases_yaml(folder, label, beside)
    settings = benign(TINY)
    case = Case(
        claim=claim,
        recipe="published.yaml",
        reference=Reference(checkpoints="reference/checkpoints", dtype="float16"),
        hypotheses={name: Hypothesis(edits=edits) for name, edits in hypotheses.items()},
        base="whole-batch",
        benign=settings,
        decoys=Decoys(count=19, seed_key="data.order.seed", first_seed=1000),
        sibling=Sibling(recipe="sibling.yaml", reference=Reference(checkpoints="sibling/checkpoints", dtype="float16")),
        no_sibling_because="",
        start=start,
        steps=steps,
        deciding_step=deciding_step,
    )
    (folder / "case.yaml").write_text(cases.to_yaml(case))
    return cases.load(folder / "case.yaml")


def cases_yaml(folder, label, beside):
    from pretrace.recipe.read import to_yaml

    (folder / "published.yaml").write_text(to_yaml(label))
    (folder / "sibling.yaml").write_text(to_yaml(beside))


def on(ed):
    """The edit that puts a recipe on an edition."""
    return {"data.sources": [source(ed).model_dump()]}
