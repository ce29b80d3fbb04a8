import json

import numpy as np
import pytest

import tiny_recipe
from pretrace.data.tokenfile import write_pair
from pretrace.errors import PretraceError
from pretrace.train import Company, RunFolder, resume, run


@pytest.fixture
def stopped(tmp_path):
    run(tiny_recipe.recipe(tmp_path, steps=2), tmp_path / "run")
    return tmp_path / "run"


def changes(folder):
    return json.loads((folder / "changes.json").read_text())


def exchange_data(folder):
    """The same number of documents and tokens, other ids: everything fits, and the run would read other text."""
    write_pair(folder / "tokens", [(d + 1) % tiny_recipe.VOCAB for d in tiny_recipe.documents()], "uint16")


def test_other_data_under_the_same_name_are_refused_and_nothing_moves(stopped, tmp_path):
    before = {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file()}
    exchange_data(tmp_path)
    with pytest.raises(PretraceError, match=r"tokens\.bin holds other bytes than before") as caught:
        resume(stopped, changes={"steps": 4})
    assert "--allow data" in caught.value.mend
    assert {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file()} == before


def test_other_data_that_are_meant_are_taken_and_recorded_with_both_fingerprints(stopped, tmp_path):
    exchange_data(tmp_path)
    assert resume(stopped, changes={"steps": 4}, allow=["data"]).steps == 4
    (record,) = changes(stopped)
    steps, files = record["changes"]
    assert (steps["key"], files["key"]) == ("steps", "data (files)")
    assert files["a"][0]["size_bytes"] == files["b"][0]["size_bytes"]
    assert files["a"][0]["xxh3"] != files["b"][0]["xxh3"]
    assert resume(stopped, changes={"steps": 5}).steps == 5  # they are the run's data from now on


def test_data_that_the_recipe_declares_anew_need_no_second_word(stopped, tmp_path):
    write_pair(tmp_path / "others", tiny_recipe.documents(seed=1), "uint16")
    source = {"path": str(tmp_path / "others"), "format": "bin_idx", "weight": None, "content": "others"}
    assert resume(stopped, changes={"data.sources": [source], "steps": 3}).steps == 3
    assert {c["key"] for c in changes(stopped)[0]["changes"]} == {"data.sources", "steps", "data (files)"}


def test_another_machine_is_told_and_recorded(stopped):
    path, said = RunFolder(stopped).environment, []
    environment = json.loads(path.read_text())
    path.write_text(json.dumps({**environment, "isa": "AVX9", "packages": {**environment["packages"], "torch": "1.0"}}))
    resume(stopped, changes={"steps": 3}, company=Company(tell=said.append))
    assert said == [f"this machine is not the one that step 2 was made on, bits may differ: isa {environment['isa']}, was AVX9; "
                    f"packages.torch {environment['packages']['torch']}, was 1.0"]  # fmt: skip
    assert [c["key"] for c in changes(stopped)[0]["changes"]] == ["steps", "isa", "packages.torch"]
    said.clear()
    resume(stopped, changes={"steps": 4}, company=Company(tell=said.append))
    assert said == []


def test_threads_matter_where_the_plan_does_not_declare_them(tmp_path):
    for declared, told in ((1, 0), (None, 1)):
        folder, said = tmp_path / f"run-{told}", []
        run(tiny_recipe.recipe(tmp_path, steps=1, step__kernels__threads=declared), folder)
        path = RunFolder(folder).environment
        path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 64}))
        resume(folder, changes={"steps": 2}, company=Company(tell=said.append))
        assert len(said) == told


def test_an_id_beyond_the_vocabulary_is_named_before_anything_is_written(tmp_path):
    write_pair(tmp_path / "tokens", [np.full(4000, 64)], "uint16")
    with pytest.raises(PretraceError, match=r"token id 64 is not in the model's vocabulary of 64"):
        run(tiny_recipe.recipe(tmp_path), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").has_begun()


def test_an_id_beyond_the_vocabulary_that_comes_later_is_named_too(tmp_path):
    write_pair(tmp_path / "tokens", [np.append(np.ones(80), np.full(400, 70)).astype(np.int64)], "uint16")
    order = {"family": "stream", "epochs": 1, "document_seed": None, "sample_seed": None, "mix_epochs": False}
    recipe = tiny_recipe.recipe(tmp_path, data__order=order, steps=4)
    with pytest.raises(PretraceError, match="token id 70") as caught:
        run(recipe, tmp_path / "run")
    assert caught.value.where == "data, samples 4..5 of the order"


def test_fewer_steps_than_there_are_already_are_refused(stopped):
    with pytest.raises(PretraceError, match="the run has 2 updates already, steps says 1"):
        resume(stopped, changes={"steps": 1})
    assert "steps: 2" in RunFolder(stopped).recipe.read_text()


def test_an_edited_recipe_is_seen_even_where_its_digest_is_lost(stopped):
    recipe = RunFolder(stopped).recipe
    recipe.write_text(recipe.read_text().replace("peak: 0.01", "peak: 0.02"))
    RunFolder(stopped).recipe_digest.unlink()
    with pytest.raises(PretraceError, match=r"peak is 0\.02, was 0\.01"):
        resume(stopped)
