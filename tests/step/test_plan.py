import subprocess
import sys

import pytest

from pretrace.errors import PretraceError
from pretrace.spec import Source, build
from pretrace.step.plan import StepPlan
from tiny import PLAN, RING, plan


def test_a_plan_survives_yaml_with_its_sources():
    read = plan(reduction__scaling=[]).with_({"world_size": 8}, Source(kind="read", where="config.yml:12"))
    again = StepPlan.from_yaml(read.to_yaml(), where="a file")
    assert again == read
    assert again.source("world_size") == Source(kind="read", where="config.yml:12")


def test_a_plan_file_without_sources_declares_its_values():
    text = plan().to_yaml().replace("sources: {}\n", "")
    assert StepPlan.from_yaml(text, where="plan.yaml").source("loss.z_loss") == Source(
        kind="declared", where="plan.yaml"
    )


def test_a_source_covers_what_lies_below_its_key_and_the_rest_is_assumed():
    known = build(StepPlan, {**PLAN, "sources": {"loss": {"kind": "probed"}}}, where="")
    assert known.source("loss.denominator").kind == "probed"
    assert known.source("accum_dtype").kind == "assumed"


def test_the_digest_ignores_sources_and_sees_every_value():
    assert plan().digest() == plan().with_({"world_size": 2}, Source(kind="probed")).digest()
    changed = [
        plan(world_size=4),
        plan(loss__z_loss=1e-4),
        plan(clip=None),
        plan(reduction__order={**RING, "sum_dtype": "float32"}),
    ]
    assert len({p.digest() for p in [plan(), *changed]}) == 5


def test_describe_prints_every_value_with_its_source():
    text = plan().with_({"clip.max_norm": 0.5}, Source(kind="read", where="run.sh:3")).describe()
    assert "2 ranks x 1 micro-steps x 2 sequences = 4 an update" in text
    assert any("clip.max_norm" in line and "0.5" in line and "read: run.sh:3" in line for line in text.splitlines())
    assert len(text.splitlines()) == 1 + len(plan().leaves())


def test_a_stated_global_batch_must_be_the_product():
    assert build(StepPlan, {**PLAN, "global_batch": 4}, where="") == plan()
    with pytest.raises(PretraceError, match="global_batch is 8"):
        build(StepPlan, {**PLAN, "global_batch": 8}, where="")


def test_processes_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(PretraceError, match="3 processes cannot share 4 ranks"):
        plan(world_size=4).topology.hosted(0, 3)


def test_float16_without_a_loss_scale_is_refused():
    with pytest.raises(PretraceError, match="without a loss scale"):
        plan(kernels__compute_dtype="float16")


def test_an_order_that_misses_a_rank_is_refused_before_anything_runs():
    ring = {"kind": "nccl_ring", "sum_dtype": "wire", "rings": [[0, 0]], "chunk_bytes": 64}
    with pytest.raises(PretraceError, match="misses rank 1"):
        plan(reduction__order=ring)


def test_an_exact_reduction_that_divides_in_between_is_refused():
    with pytest.raises(PretraceError, match="cannot divide in between"):
        plan(reduction__order={"kind": "exact", "exponent": 56})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- 1", "no mapping"),
        ("a: [", "not usable YAML"),
        ("world_size: 0", "world_size"),
        ("world_sise: 1", "missing|unknown"),
    ],
)
def test_a_text_that_is_no_plan_is_named(text, fault):
    with pytest.raises(PretraceError, match=fault):
        StepPlan.from_yaml(text, where="plan.yaml")


def test_a_changed_key_must_exist():
    with pytest.raises(PretraceError, match=r"no key 'loss\.denominater'"):
        plan(loss__denominater="positions")


def test_the_plan_does_not_import_torch():
    code = "import sys, pretrace.step.plan; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "False"
