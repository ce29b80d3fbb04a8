import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrace.errors import PretraceError
from pretrace.step.buckets import Capped, Ddp, Fsdp1, Fsdp2, Listed, Param, Whole, ddp_buckets, layout, phase_of

PARAMS = (
    Param("embed.weight", (5, 2), 4),
    Param("blocks.0.up.weight", (3, 2), 4),
    Param("blocks.0.up.bias", (3,), 4),
    Param("blocks.1.up.weight", (3, 2), 4),
    Param("norm.weight", (2,), 4),
)


def names(found):
    return [[PARAMS[p.param].name for p in found.pieces if a <= p.at < b] for a, b in found.buckets]


def test_one_bucket_holds_all_parameters_in_order():
    found = layout(Whole(), PARAMS, world_size=4, phase="first")
    assert found.buckets == ((0, 27),)
    assert [p.at for p in found.pieces] == [0, 10, 16, 19, 25]


def test_ddp_has_one_bucket_first_and_follows_the_arrival_later():
    spec = Ddp(cap_mb=25, first_cap_mb=1, restart="anew")
    assert len(layout(spec, PARAMS, world_size=2, phase="first").buckets) == 1
    later = layout(spec, PARAMS, world_size=2, phase="later", arrival=(4, 3, 2, 1, 0))
    assert [p.param for p in later.pieces] == [4, 3, 2, 1, 0]


def test_ddp_closes_a_bucket_once_it_reaches_its_cap():
    big = tuple(Param(str(i), (1 << 17,), 4) for i in range(5))  # half a MiB each
    assert ddp_buckets((4, 3, 2, 1, 0), big, 0.5, 1.0) == [[4], [3, 2], [1, 0]]


def test_a_restart_brings_the_first_layout_back_unless_the_plan_keeps_it():
    anew, kept = (Ddp(cap_mb=1, first_cap_mb=1, restart=r) for r in ("anew", "kept"))
    assert [phase_of(s, step=7, updates_since_start=0) for s in (anew, kept)] == ["first", "later"]
    assert [phase_of(s, step=7, updates_since_start=1) for s in (anew, kept)] == ["later", "later"]
    assert phase_of(kept, step=0, updates_since_start=0) == "first"


def test_fsdp2_deals_rows_to_ranks_with_padding_destination_first():
    found = layout(Fsdp2(units=("blocks.*",)), PARAMS, world_size=2, phase="first")
    assert names(found)[0] == ["blocks.0.up.weight", "blocks.0.up.bias"] * 2
    first_bucket = [(p.param, p.start, p.stop, p.at) for p in found.pieces if p.at < found.buckets[0][1]]
    # 3 rows on 2 ranks: 2 and 1 (padded to 2) rows of two elements, then 2 and 1 (padded) elements of the bias
    assert first_bucket == [(1, 0, 4, 0), (2, 0, 2, 4), (1, 4, 6, 6), (2, 2, 3, 10)]
    assert found.buckets[0] == (0, 12)
    assert names(found)[-1][0] == "embed.weight"


def test_capped_buckets_close_once_they_exceed_the_cap():
    assert [b - a for a, b in layout(Capped(cap_numel=10), PARAMS, world_size=2, phase="first").buckets] == [16, 11]


def test_listed_buckets_must_hold_every_parameter_once():
    with pytest.raises(PretraceError, match=r"miss blocks\.0\.up\.bias"):
        layout(Listed(first=(("embed.weight",),), later=()), PARAMS, world_size=2, phase="first")


SPECS = (
    Whole(),
    Fsdp2(units=("blocks.*",)),
    Fsdp2(units=()),
    Fsdp1(units=("blocks.*",), sharded=True, use_orig_params=False),
    Fsdp1(units=(), sharded=False, use_orig_params=True),
    Capped(cap_numel=4),
)


@given(spec=st.sampled_from(SPECS), world_size=st.integers(1, 9))
def test_every_element_lies_in_exactly_one_place(spec, world_size):
    found = layout(spec, PARAMS, world_size=world_size, phase="later", arrival=range(5))
    places = [i for p in found.pieces for i in range(p.at, p.at + p.stop - p.start)]
    held = sorted((p.param, i) for p in found.pieces for i in range(p.start, p.stop))
    assert len(set(places)) == len(places)
    assert held == [(n, i) for n, param in enumerate(PARAMS) for i in range(param.numel)]
    assert found.buckets[-1][1] == found.numel
