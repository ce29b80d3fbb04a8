"""Two checkpoints: the numbers, the promise of equal bits, and what is said of what cannot be paired."""

import json
import math

import numpy as np
import pytest

from assets import checkpoint_cases
from pretrace import compare
from pretrace.checkpoint import ArraysView, open_state
from pretrace.compare import words
from pretrace.errors import PretraceError


def view(**arrays):
    return ArraysView({name.replace("__", "."): np.asarray(array) for name, array in arrays.items()})


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_checkpoint_is_the_same_as_itself():
    found = compare.tensors(view(a=normal(1, 3, 4)), view(a=normal(1, 3, 4)))
    assert found.same
    assert found.total.one_minus_p_cos == 0.0


def test_the_totals_are_those_of_one_long_vector():
    a, b = (view(x=normal(s, 5, 7), y=normal(s + 1, 9)) for s in (1, 11))
    total = compare.tensors(a, b).total
    x, y = (np.concatenate([normal(s, 5, 7).ravel(), normal(s + 1, 9)]).astype(float) for s in (1, 11))
    assert total.p_cos == pytest.approx(x @ y / math.sqrt((x @ x) * (y @ y)), abs=1e-15)
    assert total.l2 == pytest.approx(np.linalg.norm(x - y), rel=1e-15)


def test_the_update_cosine_is_that_of_the_two_steps_away_from_the_base():
    base = np.array([1.0, 1.0], np.float32)
    a, b = base + np.float32([1, 0]), base + np.float32([1, 1])
    total = compare.tensors(view(w=a), view(w=b), view(w=base)).total
    assert total.u_cos == pytest.approx(math.sqrt(0.5), abs=1e-15)
    assert (total.update_a, total.update_b) == (1.0, math.sqrt(2))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(threads):
    a, b = (view(x=normal(s, 1_300_001), y=normal(s, 70_000)) for s in (1, 2))
    assert compare.tensors(a, b, threads=threads) == compare.tensors(a, b, threads=1)


def test_compiled_kernels_change_no_bit(monkeypatch):
    a, b, base = (view(x=normal(s, 200_001)) for s in (1, 2, 3))
    plain = compare.tensors(a, b, base)
    monkeypatch.setattr("pretrace.compare.measure.COMPILE_ABOVE", 0)
    assert compare.tensors(a, b, base) == plain


def test_shards_change_no_bit(tmp_path):
    from safetensors.numpy import save_file

    tensors = {f"layer.{i}.w": normal(i, 40, 30) for i in range(6)}
    other = {name: value + normal(9, 40, 30) for name, value in tensors.items()}
    for folder, parts in (("one", 1), ("three", 3)):
        (tmp_path / folder).mkdir()
        names = list(tensors)
        weight_map = {}
        for k in range(parts):
            file = f"model-{k + 1:05d}-of-{parts:05d}.safetensors" if parts > 1 else "model.safetensors"
            held = {name: tensors[name] for name in names[k::parts]}
            weight_map |= dict.fromkeys(held, file)
            save_file(held, tmp_path / folder / file)
        if parts > 1:
            index = {"metadata": {"total_size": 6 * 4800}, "weight_map": weight_map}
            (tmp_path / folder / "model.safetensors.index.json").write_text(json.dumps(index))
    b = ArraysView(other)
    one, three = (compare.tensors(open_state(tmp_path / f), b) for f in ("one", "three"))
    assert one == three


def test_equal_numbers_with_other_bits_are_told_apart_from_equal_bits():
    found = compare.tensors(view(w=np.float32([0.0, 1.0])), view(w=np.float32([-0.0, 1.0])))
    assert found.total.one_minus_p_cos == 0.0
    assert not found.same
    assert found.tensors[0].note == "equal numbers: only signs of zero differ"


def test_nan_is_reported_and_never_called_close():
    found = compare.tensors(view(w=np.float32([np.nan, 1.0])), view(w=np.float32([np.nan, 1.0])))
    assert math.isnan(found.total.p_cos)
    assert found.total.unequal == 0
    assert "1 values of A are not finite" in found.tensors[0].note


def test_the_same_numbers_in_another_dtype_are_a_difference_in_dtype_only():
    wide = np.float32([1.5, -2.0])
    found = compare.tensors(view(w=wide), view(w=wide.astype(np.float16)))
    assert found.total.unequal == 0
    assert not found.same
    assert "float32 against float16, the same numbers" in found.tensors[0].note


def test_tensors_without_partner_are_listed():
    found = compare.tensors(view(x=normal(1, 4), y=normal(2, 4)), view(x=normal(1, 4), z=normal(2, 4)))
    assert (found.only_in_a, found.only_in_b, found.same) == (("y",), ("z",), False)


def test_nothing_in_common_is_an_error():
    with pytest.raises(PretraceError, match=r"no table knows|no tensor in common"):
        compare.tensors(view(x=normal(1, 4)), view(y=normal(1, 4)))


def test_rows_of_vocabulary_padding_are_left_out_and_said():
    a, b = (
        view(embed__weight=normal(1, 8, 4)),
        view(embed__weight=np.vstack([normal(1, 8, 4), np.zeros((2, 4), np.float32)])),
    )
    found = compare.tensors(a, b)
    assert found.total.unequal == 0
    assert "rows 8 to 9 are in B only: vocabulary padding" in found.tensors[0].note


def test_a_stored_copy_of_the_tied_embedding_is_no_difference():
    e = normal(1, 8, 4)
    found = compare.tensors(view(embed__weight=e), view(embed__weight=e, head__weight=e))
    assert found.same
    assert "copy of the token embedding" in found.notes[0]


def test_a_tensor_of_another_shape_is_listed_without_numbers():
    found = compare.tensors(view(x=normal(1, 4), w=normal(1, 3, 4)), view(x=normal(1, 4), w=normal(1, 3, 5)))
    assert found.tensors[0].difference is None
    assert found.tensors[0].note == "shapes [3, 4] and [3, 5]"


def test_integers_and_8_bit_floats_are_compared_as_numbers():
    a = ArraysView({"n": np.int64([1, 2]), "f": np.uint8([0x38, 0xB8])}, dtypes={"f": "float8_e4m3fn"})
    b = ArraysView({"n": np.int64([1, 4]), "f": np.uint8([0x38, 0x38])}, dtypes={"f": "float8_e4m3fn"})
    by_name = {t.name: t.difference for t in compare.tensors(a, b).tensors}
    assert (by_name["n"].max_abs, by_name["n"].unequal) == (2.0, 1)
    assert (by_name["f"].max_abs, by_name["f"].unequal) == (2.0, 1)  # 0x38 is 1, 0xb8 is -1


def test_one_flipped_bit_of_a_real_checkpoint_is_found_at_its_place():
    cases = checkpoint_cases()
    found = compare.tensors(open_state(cases / "good_neox"), open_state(cases / "bit_flip_mantissa"))
    assert found.total.unequal == 1
    assert [t.name for t in found.different] == ["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"]
    assert "flat 5000" in found.different[0].note


def test_the_storage_format_changes_no_bit(tmp_path):
    import torch
    from safetensors.torch import save_file

    tensors = {f"layer.{i}.w": torch.from_numpy(normal(i, 40, 30)).bfloat16() for i in range(4)}
    (tmp_path / "st").mkdir()
    save_file(tensors, tmp_path / "st" / "model.safetensors")
    torch.save(tensors, tmp_path / "model.pt")
    b = ArraysView({name: normal(9, 40, 30) for name in tensors})
    with open_state(tmp_path / "st") as one, open_state(tmp_path / "model.pt") as two:
        assert compare.tensors(one, b) == compare.tensors(two, b)
        assert compare.tensors(one, two).same


def test_elements_without_a_partner_of_their_shape_are_counted_and_said():
    found = compare.tensors(
        view(w=normal(1, 4, 3), b=normal(2, 8)), view(w=normal(1, 3, 4), b=normal(2, 8), c=normal(3, 5))
    )
    assert (found.total.numel, found.not_compared) == (8, 12 + 5)
    assert "(17 more have no partner of their shape)" in words.sentence(found)
    assert found.summary()["not_compared"] == 17


def test_where_nothing_could_be_compared_no_cosine_is_given():
    found = compare.tensors(view(w=normal(1, 4, 3)), view(w=normal(1, 0, 3)))
    assert math.isnan(found.total.p_cos)
    assert "nothing could be compared: 12 elements" in words.sentence(found)


def test_the_same_numbers_in_another_dtype_are_called_that_and_are_no_move():
    w = normal(1, 64, 16).astype(np.float16)
    a = view(w=w.astype(np.float32), bias=np.zeros(64, np.float32), norm=np.ones(64, np.float32))
    found = compare.tensors(a, view(w=w, bias=np.zeros(64, np.float16), norm=np.ones(64, np.float16)))
    assert [t.move for t in found.tensors] == ["", "", ""]
    assert words.verdict(found) == "The same numbers in another dtype: 3 of 3 tensors."
    assert not found.same


def test_a_sign_of_zero_is_another_bit_and_the_same_number():
    found = compare.tensors(view(w=np.float32([0.0, 1.0])), view(w=np.float32([-0.0, 1.0])))
    assert words.verdict(found) == "The same numbers under other bits: 1 of 1 tensors."


def test_integers_one_apart_are_no_norm_weights():
    a = np.arange(64, dtype=np.int64).reshape(8, 8)
    assert compare.tensors(view(w=a), view(w=a + 1)).tensors[0].move == ""
