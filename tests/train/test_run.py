import json
import os
import shutil
import signal

import numpy as np
import pytest

import tiny_recipe
from pretrace.checkpoint.detect import open_state
from pretrace.errors import PretraceError
from pretrace.files import verify_manifest
from pretrace.runlog.read import records
from pretrace.train import Company, RunFolder, resume, run
from runs import assert_same, log


def test_a_run_leaves_recipe_environment_log_and_whole_checkpoints(tmp_path):
    recipe = tiny_recipe.recipe(tmp_path)
    result = run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert result.steps == 12
    assert list(result.checkpoints) == [0, 1, 2, 4, 8, 12]
    assert folder.recipe_digest.read_text().strip() == recipe.digest() == result.digest
    assert json.loads(folder.environment.read_text())["threads"] >= 1
    assert len(records(folder.log)) == 12
    for path in folder.whole_checkpoints().values():
        verify_manifest(path)


def test_only_the_newest_checkpoints_keep_a_training_state(tmp_path):
    run(tiny_recipe.recipe(tmp_path), tmp_path / "run")
    kept = {s: (p / "train_state").is_dir() for s, p in RunFolder(tmp_path / "run").whole_checkpoints().items()}
    assert kept == {0: False, 1: False, 2: False, 4: False, 8: True, 12: True}


def child(folder, recipe, at, signal_number):
    """The exit code of a process that trains into `folder` and is sent a signal after step `at`; it shares what is loaded."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            result = run(recipe, folder, watch=lambda record: record.step == at and os.kill(os.getpid(), signal_number))
            code = 75 if result.stopped else 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def case(tmp_path):
    run(tiny_recipe.recipe(tmp_path), tmp_path / "whole")
    return tmp_path


def test_sigterm_saves_and_leaves_with_a_code_of_its_own(case):
    assert child(case / "run", tiny_recipe.recipe(case), 6, signal.SIGTERM) == 75
    assert max(RunFolder(case / "run").whole_checkpoints()) == 6
    assert resume(case / "run").steps == 12
    assert_same(case / "run", case / "whole")


def test_a_folder_that_holds_a_run_is_not_trained_over(case):
    with pytest.raises(PretraceError, match="holds a run already") as caught:
        run(tiny_recipe.recipe(case), case / "whole")
    assert "--resume" in caught.value.mend


def test_a_folder_without_a_run_is_not_made_by_a_resume(tmp_path):
    with pytest.raises(PretraceError, match="holds no run"):
        resume(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_two_processes_do_not_train_into_one_folder(case):
    with RunFolder(case / "whole").locked(), pytest.raises(PretraceError, match="another process"):
        resume(case / "whole")


def spoil(run_folder, step, how):
    state = RunFolder(run_folder).checkpoint(step) / "train_state" / "tensors.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data[:-1] if how == "cut" else data)


@pytest.mark.parametrize(("how", "said"), [("cut", "its manifest says"), ("changed", "has other bytes")])
def test_a_damaged_checkpoint_is_passed_over_and_said(case, how, said):
    shutil.copytree(case / "whole", case / "run")
    spoil(case / "run", 12, how)
    heard = []
    assert resume(case / "run", company=Company(tell=heard.append)).steps == 12
    assert len(heard) == 1
    assert "step-00000012 is not whole" in heard[0]
    assert said in heard[0]
    assert heard[0].endswith("going on from step-00000008")
    assert_same(case / "run", case / "whole")


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_damaged_training_states_alone_are_refused(case, how):
    spoil(case / "whole", 8, how)
    spoil(case / "whole", 12, how)
    with pytest.raises(PretraceError, match=r"step-00000012 is damaged .*tensors\.safetensors has") as caught:
        resume(case / "whole")
    assert caught.value.where.endswith("step-00000012/train_state/tensors.safetensors")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_one_error(case):
    (case / "closed").mkdir(mode=0o500)
    with pytest.raises(PretraceError, match="may not be"):
        run(tiny_recipe.recipe(case), case / "closed" / "run")


def test_an_output_below_a_file_is_one_error(case):
    with pytest.raises(PretraceError, match="a part of its path is a file"):
        run(tiny_recipe.recipe(case), case / "whole" / "recipe.yaml" / "run")


def test_published_weights_are_rounded_and_the_state_is_not(tmp_path):
    run(tiny_recipe.recipe(tmp_path, checkpoints__dtype="float16"), tmp_path / "run")
    final = RunFolder(tmp_path / "run").checkpoint(12)
    with open_state(final / "model.safetensors") as view:
        assert {view.info(n).dtype for n in view.names()} == {"float16"}
    with open_state(final / "train_state" / "tensors.safetensors") as view:
        assert view.info("param.embed.weight").dtype == "float32"
        full = view.read("param.embed.weight", 0, 64)
    assert not np.array_equal(full, full.astype(np.float16).astype(np.float32))


def test_a_run_whose_checkpoints_were_taken_away_does_not_begin_anew_over_its_log(tmp_path):
    run(tiny_recipe.recipe(tmp_path, checkpoints__at=[4]), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(PretraceError, match="12 steps and there is no checkpoint, though one was due at step 4"):
        resume(tmp_path / "run")
    assert len(log(tmp_path / "run")) == 12
