import pytest
import yaml

import tiny_recipe
from pretrace.errors import PretraceError
from pretrace.recipe import load, parse, to_yaml
from pretrace.spec import Source


def text(folder, **changes):
    return yaml.safe_dump(tiny_recipe.recipe_data(folder / "tokens", **changes), sort_keys=False)


def test_a_recipe_written_and_read_is_the_same_value(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path, step__grad_accum_steps=4)
    again = parse(to_yaml(recipe), where="recipe.yaml")
    assert again == recipe
    assert again.source_of("step.grad_accum_steps") == Source(kind="declared", where="edit")


def test_every_value_of_a_file_knows_its_line(tmp_path):
    (tmp_path / "r.yaml").write_text(text(tmp_path))
    recipe = load(tmp_path / "r.yaml")
    assert recipe.source_of("name") == Source(kind="declared", where="r.yaml:1")
    line = (tmp_path / "r.yaml").read_text().splitlines().index("  d_model: 16") + 1
    assert recipe.source_of("model.d_model").where == f"r.yaml:{line}"


def test_an_override_wins_and_says_so(tmp_path):
    recipe = parse(text(tmp_path), where="r.yaml", overrides=["step.reduce_dtype=bfloat16", "step.schedule.peak=6e-4"])
    assert recipe.step.reduce_dtype == "bfloat16"
    assert recipe.step.schedule.peak == 6e-4
    assert recipe.source_of("step.reduce_dtype").where == "--set step.reduce_dtype=bfloat16"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("step.reduce_dtyp=float32", "unknown key 'step.reduce_dtyp'"),
        ("step", "is no override"),
        ("step.world_size=zero", "step.world_size"),
        ("step.world_size=0", "step.world_size"),
        ("nowhere.a=1", "unknown key 'nowhere.a'"),
    ],
)
def test_a_wrong_override_is_one_error(tmp_path, override, said):
    with pytest.raises(PretraceError, match=said):
        parse(text(tmp_path), where="r.yaml", overrides=[override])


def test_the_digest_follows_results_and_nothing_else(tmp_path):
    a = tiny_recipe.recipe(tmp_path)
    assert a.digest() == tiny_recipe.recipe(tmp_path, name="other", checkpoints__every=3).digest()
    assert a.digest() != tiny_recipe.recipe(tmp_path, step__schedule__peak=2e-2).digest()
    assert a.digest() != tiny_recipe.recipe(tmp_path, data__order__seed=7).digest()


def test_an_unknown_key_names_file_and_known_keys(tmp_path):
    with pytest.raises(PretraceError) as caught:
        parse(text(tmp_path, extra=1), where="r.yaml")
    assert (caught.value.what, caught.value.where) == ("unknown key 'extra'", "r.yaml")
    assert "model" in caught.value.mend


@pytest.mark.parametrize("bad", ["", "- a\n- b\n", "a: [1\n", "name: x\nname: y\n", "name: ${nowhere}\n"])
def test_what_is_no_recipe_is_one_error(bad):
    with pytest.raises(PretraceError) as caught:
        parse(bad, where="r.yaml")
    assert caught.value.where == "r.yaml"
    assert caught.value.mend


def test_a_file_that_is_not_there_is_one_error(tmp_path):
    with pytest.raises(PretraceError, match="does not exist"):
        load(tmp_path / "absent.yaml")
