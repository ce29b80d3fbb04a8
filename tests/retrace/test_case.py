from pathlib import Path

import pytest
import yaml

import pretrace.retrace.case as cases
from pretrace.errors import PretraceError
from pretrace.retrace.case import Case
from pretrace.retrace.template import TEMPLATE
from pretrace.spec import build


def data(**changes):
    return {**yaml.safe_load(TEMPLATE), **changes}


def case(**changes):
    return build(Case, data(**changes), where="case.yaml")


def test_the_template_is_a_complete_case():
    assert case().claim == "deduped"
    assert case().decoys.count == 19


def test_a_case_survives_writing_and_reading(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(cases.to_yaml(case()))
    assert cases.load(path).hashed() == case().hashed()


def test_paths_are_relative_to_the_case_file(tmp_path):
    (tmp_path / "case.yaml").write_text(TEMPLATE)
    assert cases.load(tmp_path / "case.yaml").recipe == "recipe.yaml"


def test_a_path_of_the_home_folder_is_found_there():
    assert case().at("~/runs") == str(Path.home() / "runs")
    assert case().at("s3://bucket/~/runs") == "s3://bucket/~/runs"


@pytest.mark.parametrize(
    "block", ["orders", "sibling_distance", "delta_loss", "palimpsest", "topologies", "fetch", "standard-on-neox"]
)
def test_every_block_that_the_template_shows_as_a_comment_can_be_taken_in(tmp_path, block):
    path = tmp_path / "case.yaml"
    path.write_text(uncommented(TEMPLATE, block))
    found = cases.load(path)
    assert block in found.hypotheses or getattr(found, block)


def uncommented(text, block):
    """The template with the marks of one commented block taken away: its first line, and the deeper ones that follow."""
    lines, inside, depth = [], False, 0
    for line in text.splitlines():
        bare = line.replace("# ", "", 1)
        begins = line.lstrip().startswith(f"# {block}:")
        depth = len(bare) - len(bare.lstrip()) if begins else depth
        inside = begins or (inside and line.lstrip().startswith("#") and len(bare) - len(bare.lstrip()) > depth)
        lines.append(bare if inside else line)
    return "\n".join(lines)


def test_an_unknown_key_is_refused_by_name(tmp_path):
    (tmp_path / "case.yaml").write_text(TEMPLATE + "\nmargin: 3\n")
    with pytest.raises(PretraceError, match="unknown key 'margin'"):
        cases.load(tmp_path / "case.yaml")


def test_a_missing_case_is_one_error(tmp_path):
    with pytest.raises(PretraceError, match="does not exist"):
        cases.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claim": "other"}, "none of the hypotheses"),
        ({"deciding_step": 3}, "not among the steps"),
        ({"decoys": {"count": 9, "seed_key": "data.order.seed", "first_seed": 0}}, "at least 19"),
        ({"sibling": None}, "no_sibling_because"),
        ({"start": {"step": 8, "burn_in": 4}}, "not after the start"),
        ({"start": {"step": 0, "burn_in": 4}}, "burn_in"),
        ({"base": "none"}, "none of the benign ones"),
        ({"benign": {"gas8": {}}}, "at least 4"),
    ],
)
def test_a_case_without_its_controls_is_refused(changes, message):
    with pytest.raises(PretraceError, match=message):
        case(**changes)


def test_a_case_may_declare_that_it_has_no_sibling():
    assert case(sibling=None, no_sibling_because="the only model of its stack").sibling is None


def test_the_digest_follows_what_decides_and_not_where_things_lie():
    reference = data()["reference"]
    moved = case(reference={**reference, "checkpoints": "elsewhere"}, recipe="other.yaml")
    assert moved.digest() == case().digest()
    assert case(deciding_step=8).digest() != case().digest()
    assert case(claim="standard").digest() != case().digest()


def test_a_fault_of_the_whole_case_is_said_in_its_own_words():
    with pytest.raises(PretraceError) as caught:
        case(claim="other")
    assert caught.value.what == "the claim 'other' is none of the hypotheses deduped, standard"
