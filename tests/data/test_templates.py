"""`pretrace data init`: every template is complete and builds, and every kind of file that is read has one."""

import typing

import pytest
import yaml

from pretrace.cli.main import main
from pretrace.data.order import AnyOrder, DataSpec
from pretrace.data.templates import TEMPLATES, spec_of
from pretrace.spec import Spec, build


def keys_of(spec):
    """Every key of a spec and of the specs in it, as nested plain data."""
    return {name: keys_of(value) if isinstance(value, Spec) else None for name, value in spec}


def shape_of(plain, like):
    return {name: shape_of(plain[name], inner) if inner else None for name, inner in like.items() if name in plain}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_template_builds_and_holds_every_key(kind):
    plain = yaml.safe_load(TEMPLATES[kind])
    spec = build(spec_of(kind), plain, where=kind)
    expected = keys_of(spec)
    if kind == "prepare":
        expected["source"] = shape_of(plain["source"], expected["source"])  # a source names what its format needs
    assert shape_of(plain, expected) == expected


def test_every_family_has_a_template():
    families = {
        typing.get_args(one.model_fields["family"].annotation)[0]
        for one in typing.get_args(typing.get_args(AnyOrder)[0])
    }
    assert families == {kind for kind in TEMPLATES if spec_of(kind) is DataSpec}


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        with pytest.raises(SystemExit) as left:
            main(["data", *words])
        out = capsys.readouterr()
        return left.value.code or 0, out.out, out.err

    return call


def test_init_writes_a_file_and_never_over_one(run, tmp_path):
    assert run("init", "neox")[0] == 0
    assert (tmp_path / "neox.yaml").read_text() == TEMPLATES["neox"]
    code, _, err = run("init", "neox")
    assert code == 2
    assert "exists already" in err
    code, _, err = run("init", "gpt-neox")
    assert code == 2
    assert "tokenise, dedup" in err


def test_faults_of_a_file_name_the_complete_example(run, tmp_path):
    (tmp_path / "e.yaml").write_text("")
    (tmp_path / "t.yaml").write_text("corpus: 3\n")
    for words, kind in (
        (("tokenise", "t.yaml", "--out", "x"), "tokenise"), (("tokenise", "e.yaml", "--out", "x"), "tokenise"),
        (("dedup", "t.yaml"), "corpus"), (("dedup", "t.yaml", "--spec", "e.yaml"), "corpus"),
        (("prepare", "t.yaml", "--out", "x"), "prepare"), (("show", "--data", "t.yaml", "--step", "0"), "neox"),
        (("train-tokenizer", "t.yaml", "--out", "x", "--vocab-size", "300", "--special", "a"), "corpus"),
    ):  # fmt: skip
        code, _, err = run(*words)
        assert code == 2
        assert f"pretrace data init {kind}" in err
