"""The draw of a case."""

from dataclasses import replace

import pytest
import torch

from experiments.config import Case
from experiments.inputs import bytes_of, changed, checksums, draw, gate_values, redraw, shape, starts

CASE = Case("speed", "kernel", "forward", "float32", 2, 3, 50)


def test_a_draw_is_the_same_every_time_and_another_for_every_set() -> None:
    first, again, other = draw(CASE, "cpu"), draw(CASE, "cpu"), draw(CASE, "cpu", 1)
    for name in ("gates", "tokens", "d_states"):
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert not torch.equal(first.tokens, draw(replace(CASE, seed=1), "cpu").tokens)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("gates", "low"), [("uniform_0_1", 0.0), ("uniform_099_1", 0.99)])
def test_gates_fill_their_range(dtype: str, gates: str, low: float) -> None:
    drawn = draw(Case("speed", "api", "forward", dtype, 4, 8, 4096, gates=gates), "cpu")
    assert drawn.gates.dtype == drawn.tokens.dtype == drawn.d_states.dtype == getattr(torch, dtype)
    rounded = torch.tensor(low, dtype=torch.float64).to(drawn.gates.dtype)
    assert drawn.gates.min() >= rounded
    assert abs(drawn.gates.double().mean() - (low + 1) / 2) < 0.01 * (1 - low) + 0.002
    # An open end in the drawn dtype; 16 bits may round up to it.
    assert drawn.gates.max() < 1 or dtype in ("float16", "bfloat16")
    assert abs(drawn.tokens.double().std() - 1) < 0.01


def test_every_16_bit_gate_is_one_of_the_listed_values() -> None:
    for dtype, count in (("bfloat16", 4), ("float16", 21)):
        case = Case("precision", "api", "forward", dtype, 4, 8, 4096, gates="uniform_099_1")
        values = gate_values(case)
        assert set(draw(case, "cpu").gates.unique().tolist()) == set(values)
        assert len(values) == count
    assert gate_values(replace(case, dtype="bfloat16")) == [0.98828125, 0.9921875, 0.99609375, 1.0]


def test_layout_and_size_follow_the_case() -> None:
    assert shape(CASE) == (2, 3, 50)
    assert draw(replace(CASE, dim=-2), "cpu").tokens.shape == (2, 50, 3)
    assert bytes_of(replace(CASE, dtype="bfloat16")) == 2 * 3 * 50 * 2


def test_both_layouts_hold_the_same_numbers() -> None:
    first, last = draw(CASE, "cpu"), draw(replace(CASE, dim=-2), "cpu")
    for name in ("gates", "tokens", "d_states"):
        assert getattr(last, name).is_contiguous()
        assert torch.equal(getattr(last, name), getattr(first, name).transpose(1, 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["gates", "tokens", "d_states", "cu_seqlens"])
def test_a_write_to_what_is_shared_is_found_and_undone_in_place(dtype: str, name: str) -> None:
    case = replace(CASE, dtype=dtype, lengths="1x20+2x15")
    sets = [draw(case, "cpu", index) for index in range(2)]
    before = checksums(sets)
    originals = [{which: each.clone() for which, each in inputs.shared().items()} for inputs in sets]
    addresses = [each.data_ptr() for inputs in sets for each in inputs.shared().values()]
    assert changed(sets, before) == []
    written = sets[1].shared()[name].view(-1)
    # The smallest change there is: the last bit of one element.
    written[3] = written[3] + 1 if name == "cu_seqlens" else torch.nextafter(written[3], written[3] + 1)
    assert changed(sets, before) == [name]
    redraw(sets, case, "cpu")
    assert changed(sets, before) == []
    for inputs, original in zip(sets, originals, strict=True):
        assert all(torch.equal(each, original[which]) for which, each in inputs.shared().items())
    assert addresses == [each.data_ptr() for inputs in sets for each in inputs.shared().values()]


def test_complex_gates_have_their_modulus_in_the_range() -> None:
    drawn = draw(Case("few_rows", "kernel", "forward", "complex64", 1, 8, 4096, gates="uniform_099_1"), "cpu")
    sizes = drawn.gates.abs()
    assert drawn.gates.dtype == drawn.tokens.dtype == drawn.d_states.dtype == torch.complex64
    assert sizes.min() > 0.9899 and sizes.max() < 1.0001
    assert abs(drawn.gates.mean()) < 0.02, "any angle"
    assert bytes_of(replace(CASE, dtype="complex64")) == 2 * 3 * 50 * 8


@pytest.mark.parametrize(("directions", "more"), [
    ("branched", {"gates_reverse", "tokens_reverse", "d_states_reverse"}), ("shared", {"d_states_reverse"}),
    ("shared_sum", set()),
])  # fmt: skip
def test_a_second_direction_has_tensors_of_its_own_behind_the_first(directions: str, more: set[str]) -> None:
    case = replace(CASE, directions=directions)
    drawn, causal = draw(case, "cpu"), draw(CASE, "cpu")
    assert set(drawn.shared()) == {*causal.shared(), *more}
    assert all(torch.equal(drawn.shared()[name], each) for name, each in causal.shared().items())
    before = checksums([drawn])
    for name in more:
        drawn.shared()[name][0, 0, 0] += 1
    assert set(changed([drawn], before)) == more
    redraw([drawn], case, "cpu")
    assert changed([drawn], before) == []


def test_packed_sequences_become_offsets() -> None:
    packed = replace(CASE, lengths="1x20+1x0+2x15", T=50)
    offsets = draw(packed, "cpu").cu_seqlens
    assert offsets is not None and offsets.dtype == torch.int32
    assert offsets.tolist() == [0, 20, 20, 35, 50]
    assert starts(packed) == [0, 20, 35]
    assert starts(replace(CASE, lengths="1x0+1x50")) == [0]
    assert draw(CASE, "cpu").cu_seqlens is None


def test_a_buffer_is_made_once_a_set() -> None:
    first, second = draw(CASE, "cpu"), draw(CASE, "cpu", 1)
    assert first.buffer("states") is first.buffer("states")
    assert first.buffer("states") is not first.buffer("d_gates")
    assert first.buffer("states") is not second.buffer("states")
    assert first.buffer("states").shape == first.tokens.shape
