"""What is missing is said at once: what it is, where it belongs, where it comes from."""

import shutil

import pytest
import yaml

import pretrace.retrace.case as cases
from pretrace.cli.main import main
from pretrace.errors import PretraceError
from pretrace.recipe.read import to_yaml
from pretrace.retrace import run
from pretrace.retrace.inputs import missing
from pretrace.retrace.template import TEMPLATE
from retrace_lab import edition, lab_recipe


@pytest.fixture
def case_file(tmp_path):
    """The template's case with its recipes, and nothing else of it here."""
    recipe = lab_recipe(edition(tmp_path, "tokens", [[1, 2, 3]]))
    for name in ("recipe", "sibling"):
        (tmp_path / f"{name}.yaml").write_text(to_yaml(recipe))
    data = yaml.safe_load(TEMPLATE) | {"fetch": {"data": "git clone the data", "data/standard": "download ORG/NAME"}}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "case.yaml"


def test_every_missing_input_is_named_with_its_place_and_its_source(case_file):
    folder = case_file.parent
    found = {each.path: each for each in missing(cases.load(case_file))}
    assert set(found) == {
        str(folder / name)
        for name in ("reference/checkpoints", "sibling/checkpoints", "data/standard.bin", "data/standard.idx")
    }
    assert found[str(folder / "reference/checkpoints")].steps == (0, 1, 2, 4, 8, 16)


def test_token_files_of_a_recipe_are_found_beside_the_case_wherever_it_is_run_from(
    case_file, tmp_path_factory, monkeypatch
):
    recipe = lab_recipe(edition(case_file.parent, "tokens", [[1, 2, 3]]))
    relative = recipe.with_values({"data.sources": [{**recipe.data.sources[0].model_dump(), "path": "tokens"}]})
    (case_file.parent / "recipe.yaml").write_text(to_yaml(relative))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    main_recipe, _ = cases.recipes_of(cases.load(case_file))
    assert main_recipe.data.sources[0].path == str(case_file.parent / "tokens")
    assert not [each for each in missing(cases.load(case_file)) if "deduped" in each.what]


def test_the_nearest_words_of_the_case_file_say_where_to_fetch(case_file):
    case = cases.load(case_file)
    by_path = {each.path: each.fetch for each in missing(case)}
    place = str(case_file.parent / "data")
    assert by_path[f"{place}/standard.bin"] == "download ORG/NAME"
    assert by_path[str(case_file.parent / "reference/checkpoints")] == ""


def test_a_run_without_its_inputs_reads_nothing_and_says_what_to_fetch(case_file, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["retrace", "run", str(case_file), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert "4 inputs of the case are not here" in text
    assert "checkpoints of the reference, steps 0, 1, 2, 4, 8, 16" in text
    assert text.count("download ORG/NAME") == 2
    assert not (tmp_path / "out").exists()


def test_a_plan_needs_no_data_and_lists_what_is_not_here(case_file, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["retrace", "plan", str(case_file)])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "hypotheses deduped, standard" in text
    assert "device-hours" in text
    assert text.count("not here") == 4


def test_steps_that_are_there_are_said_beside_those_that_are_not(made, tmp_path):
    folder, case, _ = made
    shutil.copytree(folder / "reference" / "checkpoints", tmp_path / "series")
    shutil.rmtree(tmp_path / "series" / "step-00000002")
    gap = case.model_copy(
        update={"reference": case.reference.model_copy(update={"checkpoints": str(tmp_path / "series")})}
    )
    with pytest.raises(PretraceError, match=r"steps 2 \(steps 0, 1, 4 are there\)"):
        run(gap, tmp_path / "out", workers=0)
