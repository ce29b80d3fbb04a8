"""The converted GPT-3 checkpoint of AI-Hypercomputer/maxtext#887, played whole.

A Paxml checkpoint is converted to MaxText by four processes, each with a disk of its own. With a converter that does not
look, the first host's folder holds a quarter of every array, the rest reads as zeros without an error, and the loss starts
near guessing. Here the four are refused; the damaged folder is named by the audit; the four folders are joined to the whole.
"""

import json
import shutil

import numpy as np
import pytest

from convert_lab import request, settings
from paxml_lab import SPEC, run_at_4000, write_paxml
from pretrace.audit import checkpoint
from pretrace.checkpoint import open_state, read_all
from pretrace.checkpoint.model_of import model_of
from pretrace.checkpoint.names import canonical
from pretrace.convert.logits import mean_loss
from pretrace.convert.merge import merge
from pretrace.convert.run import convert
from pretrace.convert.second import second_logits
from pretrace.errors import PretraceError

IDS = np.tile(np.arange(48), 2)[None, :17]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The Paxml folder, the whole MaxText folder in chunks of 2 KiB, and what each of four hosts wrote on its own disk."""
    place = tmp_path_factory.mktemp("story")
    write_paxml(place / "paxml", run_at_4000())
    how = request("maxtext", ocdbt=False, shard_bytes=2048)
    made = convert(str(place / "paxml"), place / "whole", how, settings(logits=False))
    for host in range(4):
        shutil.copytree(place / "whole", place / f"host{host}", ignore=_all_but(host))
    return place, made


def _all_but(host):
    def ignored(folder, names):
        grid = sorted(n for n in names if ".zarray" in names and all(part.isdigit() for part in n.split(".")))
        mine = set(grid[host::4])
        return [n for n in names if (n in grid and n not in mine) or n == "conversion.json"]

    return ignored


def loss_at_start(folder):
    """As MaxText would see it: its own arithmetic on what reads from the folder, absent chunks as zeros."""
    from pretrace.checkpoint.detect import survey

    with survey(folder).view as view:
        return mean_loss(second_logits(view, SPEC, IDS[:, :-1]), IDS[:, 1:])


def test_a_quarter_reads_without_an_error_and_starts_near_guessing(story):
    place, made = story
    assert made.proof.summary()["round_trip"] == "bitwise"
    whole, quarter = loss_at_start(place / "whole"), loss_at_start(place / "host0")
    assert whole < 1.0
    assert quarter > 3 * whole  # arrays of one chunk are whole on host 0: 1.7 where 0.5 is right


def test_the_audit_names_what_happened(story):
    place, _ = story
    seen = checkpoint(place / "host0")
    assert seen.outcome == "fail"
    (absent,) = [f for f in seen.findings if f.code == "chunks-absent"]
    assert "are absent" in absent.what
    assert "read as 0" in absent.what


def test_such_a_folder_is_never_converted(story, tmp_path):
    place, _ = story
    with pytest.raises(PretraceError, match="are absent"):
        convert(str(place / "host0"), tmp_path / "out", request("hf", state="drop"), settings())


def test_the_four_folders_are_the_whole_again(story, tmp_path):
    place, _ = story
    merge([str(place / f"host{k}") for k in range(4)], tmp_path / "merged", 2)
    with open_state(tmp_path / "merged") as a, open_state(place / "whole") as b:
        assert a.names() == b.names()
        assert all((read_all(a, n) == read_all(b, n)).all() for n in a.names())
        assert any(n.startswith("opt_state.mu") for n in a.names())  # Adam's state too
    assert loss_at_start(tmp_path / "merged") == loss_at_start(place / "whole")
    np.save(tmp_path / "ids.npy", np.tile(np.arange(48), 4))
    made = convert(
        str(tmp_path / "merged"),
        tmp_path / "dcp",
        request("dcp", state="drop"),
        settings(probe=str(tmp_path / "ids.npy")),
    )
    assert made.proof.probe_loss < 1.0
    json.loads((tmp_path / "dcp" / "conversion.json").read_text())


def test_three_of_the_four_are_refused(story, tmp_path):
    place, _ = story
    with pytest.raises(PretraceError, match="do not make a whole"):
        merge([str(place / f"host{k}") for k in (0, 1, 3)], tmp_path / "merged", 2)
    with open_state(place / "whole") as view:
        assert model_of(view).spec.n_layers == SPEC.n_layers == 3
        assert canonical(view, SPEC).names()
