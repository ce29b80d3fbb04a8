import pytest

from pretrace.errors import PretraceError
from pretrace.step.engine_fit import for_all, for_ddp, for_fsdp2, refuse_misfits
from tiny import plan

HERE = {"processes": 4, "routed": False, "backend": "gloo"}
FAR = {  # as far from every engine as a plan can be
    "world_size": 4, "kernels.loss_rows": 512, "loss.divide": "gradient", "clip": {
        "scope": "local", "max_norm": 1.0, "norm": "flat", "rule": "torch", "eps": 1e-6},
    "kernels.compute_dtype": "bfloat16", "accum_dtype": "bfloat16", "reduction.order": {"kind": "tree", "sum_dtype": "wire"},
}  # fmt: skip


@pytest.mark.parametrize(("engine", "misfits"), [("DDP", for_ddp), ("FSDP2", lambda found: for_fsdp2(found, "gloo"))])
def test_a_plan_told_to_be_the_engines_is_the_engines(engine, misfits):
    far = plan().with_(FAR)
    found = [*for_all(far, **HERE), *misfits(far)]
    assert len(found) >= 6
    near = far.with_({key: value for misfit in found for key, value in misfit.fits.items()})
    assert [*for_all(near, **HERE), *misfits(near)] == []
    refuse_misfits(engine, iter(()))


def test_everything_that_does_not_fit_is_named_at_once_as_it_can_be_typed():
    with pytest.raises(PretraceError) as caught:
        refuse_misfits(
            "DDP",
            for_all(
                plan().with_({"world_size": 1, "kernels.loss_rows": 512, "loss.divide": "gradient"}),
                **HERE | {"processes": 1},
            ),
        )
    assert caught.value.where == "step.loss.divide, step.kernels.loss_rows"
    assert "--set 'step.loss.divide=\"loss\"' --set 'step.kernels.loss_rows=null'" in caught.value.mend


def test_three_ranks_on_gloo_are_added_along_its_ring_and_two_in_any_order():
    tree = plan().with_({"world_size": 3, "reduction.order": {"kind": "tree", "sum_dtype": "wire"}})
    assert [m.key for m in for_all(tree, **HERE | {"processes": 3})] == ["reduction.order"]
    assert [*for_all(tree.with_({"world_size": 2}), **HERE | {"processes": 2})] == []
    assert [*for_all(tree, **HERE | {"processes": 3, "backend": "nccl"})] == []


def test_what_no_declaration_mends_is_said():
    with pytest.raises(PretraceError, match=r"3 processes cannot be 4 ranks one to one \(start 4\)") as caught:
        refuse_misfits("DDP", for_all(plan().with_({"world_size": 4}), **HERE | {"processes": 3}))
    assert caught.value.mend.startswith("this plan cannot be made this engine's")
