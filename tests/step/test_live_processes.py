"""P real processes that share W ranks against one process that plays all of them: the same bits, the same outcome."""

import pytest
import torch

import live
from live import ours

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_gives_the_bits_of_one(processes):
    exact = set()
    for how, (bits, outcome) in [pair for pair in live.results(processes, "ours") if "failing" not in pair[0]]:
        alone, expected = ours.run(0, 1, how)
        assert torch.equal(bits, alone), how
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
        assert (outcome.grad_norm, outcome.clip_coefficient) == (expected.grad_norm, expected.clip_coefficient)
        assert outcome.logits == expected.logits
        if budget := how.get("budget"):
            assert 0 < outcome.peak_parked_bytes <= budget
            assert outcome.evaluations > 4 // processes  # in rounds, the ranks played again in each
        if not how["ragged"]:
            exact.add(bits.numpy().tobytes())
    assert len(exact) == 1  # 8 micro-batches summed exactly, however they are dealt


@pytest.mark.parametrize("processes", [2, 4])
def test_a_process_that_fails_ends_the_step_in_all_of_them(processes):
    (said,) = [found for how, found in live.results(processes, "ours") if "failing" in how]
    assert said == f"process {processes - 1} could not do its part of the step"


@pytest.mark.slow
def test_exact_sums_have_one_hash_after_50_steps_whatever_w_gas_and_p():
    hashes = {ours.run(0, 1, how)[0].numpy().tobytes() for how in ours.dealt(50)}
    for processes in (2, 4):
        some = [how for how in ours.dealt(50) if how["changes"]["world_size"] % processes == 0]
        hashes |= {bits.numpy().tobytes() for bits, _ in live.launch(processes, "live.ours", some)}
    assert len(hashes) == 1
