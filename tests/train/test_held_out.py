import pytest

import tiny_recipe
from pretrace.errors import PretraceError
from pretrace.score.likelihood import held_out_loss
from pretrace.train import begin, resume, run
from pretrace.train.held_out import held_out_batches, measure
from runs import assert_same, log


def recipe(folder, **evaluation):
    data = tiny_recipe.recipe_data(folder / "tokens")["data"]
    spec = {"every": 4, "data": data, "n_samples": 10, "micro_batch": 4, "target": None, **evaluation}
    return tiny_recipe.recipe(folder).with_values({"evaluation": spec})


def test_the_held_out_loss_is_the_mean_over_all_tokens_of_its_samples(tmp_path):
    whole = recipe(tmp_path)
    training = begin(whole)
    batches = held_out_batches(whole.evaluation, whole.model.vocab_size)
    assert [b.tokens.shape[0] for b in batches] == [4, 4, 2]
    found = measure(training, batches)
    assert found.n_tokens == 10 * 16
    in_one = held_out_loss(training.state.model, [training.order.batch(range(10))])
    assert found.nats_per_token == pytest.approx(in_one.nats_per_token, rel=1e-6)


def test_evaluation_moves_no_bit_of_the_run_and_does_not_enter_its_digest(tmp_path):
    watched, plain = recipe(tmp_path), tiny_recipe.recipe(tmp_path)
    assert watched.digest() == plain.digest()
    run(watched, tmp_path / "watched")
    run(plain, tmp_path / "plain")
    rows, bare = log(tmp_path / "watched"), log(tmp_path / "plain")
    assert [r["step"] for r in rows if r["notes"]] == [4, 8, 12]
    assert [{**r, "notes": {}} for r in rows] == bare


def test_a_run_ends_at_its_target_and_stays_ended(tmp_path):
    seen = recipe(tmp_path)
    run(seen, tmp_path / "seen")
    at_eight = log(tmp_path / "seen")[7]["notes"]["held_out_loss"]
    aimed = recipe(tmp_path, target=at_eight)
    assert aimed.digest() != seen.digest()
    result = run(aimed, tmp_path / "run")
    assert (result.steps, result.reached, result.stopped) == (8, True, False)
    assert max(result.checkpoints) == 8
    again = resume(tmp_path / "run")
    assert (again.steps, again.reached) == (8, True)
    assert_same(tmp_path / "run", tmp_path / "run", 8)


def test_too_few_held_out_samples_are_named(tmp_path):
    with pytest.raises(PretraceError, match="5,000 held-out samples are asked for"):
        run(recipe(tmp_path, n_samples=5000), tmp_path / "run")
