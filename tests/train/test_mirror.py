import shutil

import pytest

import tiny_recipe
from pretrace.errors import PretraceError
from pretrace.train import Company, RunFolder, resume, run
from pretrace.train.mirror import Mirror, fetch
from runs import assert_same, assert_whole


def mirrored(recipe, folder, url, tell=lambda said: None):
    with Mirror(url, RunFolder(folder), tell) as mirror:
        return run(recipe, folder, company=Company(saved=mirror.add))


def assert_goes_on_from(url, recipe, tmp_path):
    """A run mirrored to step 6 is fetched into an empty place and ends with the bits of the whole run."""
    mirrored(recipe.with_values({"steps": 6}), tmp_path / "pod", url)
    shutil.rmtree(tmp_path / "pod")
    assert fetch(url, tmp_path / "new") == RunFolder(tmp_path / "new").checkpoint(6)
    assert_whole(tmp_path / "new")
    resume(tmp_path / "new", changes={"steps": 12})
    run(recipe, tmp_path / "whole")
    assert_same(tmp_path / "new", tmp_path / "whole")


def test_a_run_goes_on_from_its_mirror_in_an_empty_place(tmp_path):
    assert_goes_on_from(f"file://{tmp_path}/mirror", tiny_recipe.recipe(tmp_path), tmp_path)


def test_the_mirror_holds_the_checkpoints_byte_for_byte(tmp_path):
    mirrored(tiny_recipe.recipe(tmp_path), tmp_path / "run", f"file://{tmp_path}/mirror")
    ours = RunFolder(tmp_path / "run").whole_checkpoints()
    theirs = RunFolder(tmp_path / "mirror").whole_checkpoints()
    assert ours.keys() == theirs.keys()
    weights = [(p / "model.safetensors").read_bytes() for paths in (ours, theirs) for p in paths.values()]
    assert weights[:6] == weights[6:]
    assert_whole(tmp_path / "mirror")
    assert (tmp_path / "mirror" / "log.jsonl").read_text() == (tmp_path / "run" / "log.jsonl").read_text()


def test_a_stopped_copy_is_continued_and_files_that_are_there_are_not_sent_again(tmp_path, monkeypatch):
    run(tiny_recipe.recipe(tmp_path), tmp_path / "run")
    checkpoint = RunFolder(tmp_path / "run").checkpoint(12)
    mirror, sent = Mirror(f"file://{tmp_path}/mirror", RunFolder(tmp_path / "run"), print), []
    inner = mirror.fs.put_file
    monkeypatch.setattr(mirror.fs, "put_file", lambda a, b: sent.append(b) or inner(a, b))
    mirror.copy(checkpoint)
    copied = tmp_path / "mirror" / "checkpoints" / checkpoint.name
    damaged = copied / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (copied / "manifest.json").unlink()
    sent.clear()
    mirror.copy(checkpoint)
    assert [path.rsplit("/", 1)[1] for path in sent] == ["model.safetensors"]
    assert_whole(tmp_path / "mirror")


def test_a_mirror_that_fails_is_told_and_tried_again_and_the_run_goes_on(tmp_path, monkeypatch):
    said = []
    recipe = tiny_recipe.recipe(tmp_path)
    with Mirror(f"file://{tmp_path}/mirror", RunFolder(tmp_path / "run"), said.append) as mirror:
        inner, calls = mirror.fs.put_file, iter(range(100))

        def put(a, b):
            if next(calls) < 3:
                raise ConnectionError("no route to host")
            inner(a, b)

        monkeypatch.setattr(mirror.fs, "put_file", put)
        assert run(recipe, tmp_path / "run", company=Company(saved=mirror.add)).steps == 12
    assert "no route to host" in said[0]
    assert list(RunFolder(tmp_path / "mirror").whole_checkpoints()) == [0, 1, 2, 4, 8, 12]


def test_what_a_mirror_missed_is_said_at_the_end_and_sent_by_the_next_process(tmp_path, monkeypatch):
    def refuse(self, a, b):
        raise ConnectionError("no route to host")

    said, run_folder = [], RunFolder(tmp_path / "run")
    recipe = tiny_recipe.recipe(tmp_path, steps=4)
    with monkeypatch.context() as broken, Mirror(f"file://{tmp_path}/mirror", run_folder, said.append) as mirror:
        broken.setattr(type(mirror.fs), "put_file", refuse)
        run(recipe, tmp_path / "run", company=Company(saved=mirror.add))
    assert said[-1].startswith("4 checkpoints are not in the mirror (step-00000000, step-00000001, step-00000002 ...)")
    with Mirror(f"file://{tmp_path}/mirror", run_folder, said.append) as mirror:
        resume(tmp_path / "run", changes={"steps": 8}, company=Company(saved=mirror.add))
    assert list(RunFolder(tmp_path / "mirror").whole_checkpoints()) == [0, 1, 2, 4, 8]
    assert_whole(tmp_path / "mirror")


def test_an_empty_mirror_gives_nothing_and_an_unknown_address_is_one_error(tmp_path):
    assert fetch(f"file://{tmp_path}/nothing", tmp_path / "run") is None
    with pytest.raises(PretraceError, match="cannot be opened"):
        fetch("nosuch://bucket/run", tmp_path / "run")


@pytest.mark.interop
def test_a_run_goes_on_from_a_real_s3_server(tmp_path, s3_server):
    s3_server.mkdir("runs")
    assert_goes_on_from("s3://runs/tiny", tiny_recipe.recipe(tmp_path), tmp_path)


def test_a_mirror_belongs_to_one_run(tmp_path):
    url, recipe = f"file://{tmp_path}/mirror", tiny_recipe.recipe(tmp_path, steps=2)
    mirrored(recipe, tmp_path / "first", url)
    kept = {p: p.read_bytes() for p in (tmp_path / "mirror").rglob("*") if p.is_file()}
    with pytest.raises(PretraceError, match="the mirror holds another run"):
        mirrored(recipe.with_values({"seeds.init": 9}), tmp_path / "second", url)
    assert not (tmp_path / "second").exists()
    run(recipe, tmp_path / "third")  # the same recipe is another run all the same
    with (
        pytest.raises(PretraceError, match="the mirror holds another run"),
        Mirror(url, RunFolder(tmp_path / "third"), print),
    ):
        pass
    assert {p: p.read_bytes() for p in (tmp_path / "mirror").rglob("*") if p.is_file()} == kept
    with Mirror(url, RunFolder(tmp_path / "first"), print) as mirror:
        resume(tmp_path / "first", changes={"steps": 4}, company=Company(saved=mirror.add))
    assert 4 in RunFolder(tmp_path / "mirror").whole_checkpoints()


def test_a_mirror_of_an_earlier_version_is_known_by_its_recipe_and_gets_an_identity(tmp_path):
    url, recipe = f"file://{tmp_path}/mirror", tiny_recipe.recipe(tmp_path, steps=2)
    mirrored(recipe, tmp_path / "run", url)
    (tmp_path / "mirror" / "run_id").unlink()
    with Mirror(url, RunFolder(tmp_path / "run"), print) as mirror:
        resume(tmp_path / "run", changes={"steps": 4}, company=Company(saved=mirror.add))
    assert (tmp_path / "mirror" / "run_id").read_text() == (tmp_path / "run" / "run_id").read_text()
    assert 4 in RunFolder(tmp_path / "mirror").whole_checkpoints()
