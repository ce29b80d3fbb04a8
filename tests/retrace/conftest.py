"""One small case that several files look at from their sides; its runs are made once."""

import pytest

from pretrace.retrace import run
from retrace_lab import documents, edition, lab_case, lab_recipe, on


@pytest.fixture(scope="session")
def editions(tmp_path_factory):
    folder, docs = tmp_path_factory.mktemp("editions"), documents()
    return edition(folder, "a", docs), edition(folder, "b", docs[:60] + docs[80:])


@pytest.fixture(scope="session")
def made(tmp_path_factory, editions):
    """A case whose reference was trained on `a` and is said to be of `b`, with its runs kept."""
    a, b = editions
    folder = tmp_path_factory.mktemp("case")
    case = lab_case(folder, lab_recipe(a), {"a": on(a), "b": on(b)}, "b")
    return folder, case, run(case, folder, workers=0)


@pytest.fixture(scope="session")
def long_case(tmp_path_factory):
    """A run of sixty steps on `a` that is said to be of `b`, with late checkpoints."""
    folder, docs = tmp_path_factory.mktemp("losses"), documents(400)
    a, b = edition(folder, "a", docs), edition(folder, "b", docs[:300])
    longer = {"steps": 60, "step.schedule.peak": 0.02, "step.schedule.warmup_steps": 8, "data.order.num_samples": 900,
              "checkpoints.at": [0, 1, 2, 4, 56, 59]}  # fmt: skip
    hypotheses = {"a": on(a), "b": on(b), "other order of a": {"data.order.seed": 99}}
    return lab_case(folder, lab_recipe(a, edits=longer), hypotheses, "b")
