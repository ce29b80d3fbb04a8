"""Every example in a docstring runs."""

import doctest
import importlib
from pathlib import Path

import pytest

import pretrace

SRC = Path(pretrace.__file__).parent
WITH_EXAMPLES = [p for p in sorted(SRC.rglob("*.py")) if ">>>" in p.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda p: str(p.relative_to(SRC)))
def test_examples_in_docstrings_hold(path):
    name = ".".join(["pretrace", *path.relative_to(SRC).with_suffix("").parts])
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
