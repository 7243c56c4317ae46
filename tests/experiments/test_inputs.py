"""The draw of a case."""

from dataclasses import replace

import pytest
import torch

from experiments.config import Case
from experiments.inputs import bytes_of, draw, gate_values, shape, starts

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
