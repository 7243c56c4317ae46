"""What a sequence or a row holds stays there; invalid offsets are loud."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from scan import launch, linear_scan
from tests.scan.budget import assert_within, expected
from tests.scan.cases import Case, Inputs, bits, draw, grid
from tests.scan.runs import Outputs, run, run_implementation

# NumPy's remarks on arithmetic with infinities, in the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

BOTH = {"dim": (-1, -2), "reverse": (False, True)}
LENGTHS = (9, 0, 37, 1, 70)
SLACK = 6
POISONS = (math.nan, math.inf, -math.inf, 1e30)


def _steps(outputs: Outputs, case: Case, start: int, stop: int) -> list[Tensor]:
    """What every output along time holds from `start` to `stop`."""
    along = [outputs[name] for name in ("states", "d_gates", "d_tokens")]
    return [t.narrow(case.dim, start, stop - start) for t in along if t is not None]


def _sequences(outputs: Outputs, case: Case, but: int) -> list[Tensor]:
    """Everything that belongs to the sequences other than `but`."""
    parts = []
    for n, length in enumerate(LENGTHS):
        if n != but:
            parts += _steps(outputs, case, case.offsets[n], case.offsets[n] + length)
            parts += [t[n] for name in ("final_state", "d_initial_state") if (t := outputs[name]) is not None]
    return parts


def _poison(inputs: Inputs, case: Case, n: int, what: str, value: float) -> None:
    """Put a value into the first, a middle and the last step of a sequence, or into its states."""
    if what.endswith("state"):
        getattr(inputs, what)[n].fill_(value)
        return
    start, length = case.offsets[n], LENGTHS[n]
    for step in (start, start + length // 2, start + length - 1):
        getattr(inputs, what).select(case.dim, step).fill_(value)


@pytest.mark.parametrize("bad", [0, 2, 3, 4])
@pytest.mark.parametrize("case", grid(T=(sum(LENGTHS) + SLACK,), lengths=(LENGTHS,), **BOTH), ids=str)
def test_a_sequence_keeps_its_poison(case: Case, bad: int, device: torch.device) -> None:
    case = dataclasses.replace(case, rows=(2,), initial=True)
    clean = _sequences(run(case, draw(case, device)), case, bad)
    for what in ("gates", "tokens", "initial_state", "d_states", "d_final_state"):
        for value in POISONS:
            if what != "gates" and value is not math.inf:
                continue  # the other values take the same way
            inputs = draw(case, device)
            _poison(inputs, case, bad, what, value)
            dirty = _sequences(run(case, inputs), case, bad)
            for before, after in zip(clean, dirty, strict=True):
                assert torch.equal(bits(before), bits(after)), f"{value} in {what} came out of its sequence"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("case", grid(T=(sum(LENGTHS) + SLACK,), lengths=(LENGTHS,), **BOTH), ids=str)
def test_a_sequence_keeps_its_poison_in_every_dtype(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    case = dataclasses.replace(case, rows=(2,), initial=True, dtype=dtype, log=case.reverse)
    clean = _sequences(run(case, draw(case, device)), case, 2)
    inputs = draw(case, device)
    for what in ("gates", "tokens", "d_states"):
        _poison(inputs, case, 2, what, math.nan)
    for before, after in zip(clean, _sequences(run(case, inputs), case, 2), strict=True):
        assert torch.equal(bits(before), bits(after))


@pytest.mark.parametrize("lengths", [LENGTHS, (0,), ()], ids=str)
@pytest.mark.parametrize("case", grid(T=(sum(LENGTHS) + SLACK,), **BOTH), ids=str)
def test_slack_may_hold_anything(case: Case, lengths: tuple[int, ...], device: torch.device) -> None:
    case = dataclasses.replace(case, rows=(2,), initial=True, lengths=lengths)
    used = sum(lengths)
    clean, inputs = run(case, draw(case, device)), draw(case, device)
    for tensor in (inputs.gates, inputs.tokens, inputs.d_states):
        assert tensor is not None
        tensor.narrow(case.dim, used, case.T - used).fill_(math.nan)
    dirty = run(case, inputs)
    for name, before in clean.items():
        after = dirty[name]
        assert before is not None and after is not None and torch.equal(bits(before), bits(after)), name
    assert all((part == 0).all() for part in _steps(dirty, case, used, case.T))


def test_weights_behind_a_padded_tail_get_finite_gradients(device: torch.device) -> None:
    weight = torch.ones(2, 2, device=device, requires_grad=True)
    cu_seqlens = torch.tensor([0, 3, 5], dtype=torch.int32, device=device)
    tokens = weight @ torch.ones(2, 8, device=device)
    linear_scan(torch.full_like(tokens, 0.5), tokens, cu_seqlens=cu_seqlens).states.sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


@pytest.mark.parametrize("case", grid(T=(541,), lengths=((50, 64, 202, 92, 123),), dim=(-1, -2)), ids=str)
def test_packed_is_each_alone(case: Case, device: torch.device) -> None:
    case = dataclasses.replace(case, T=sum(case.lengths or ()), rows=(2,))
    inputs = draw(case, device)
    packed = linear_scan(inputs.gates, inputs.tokens, cu_seqlens=inputs.cu_seqlens, dim=case.dim).states
    for start, length in zip(case.offsets, case.lengths or (), strict=False):
        alone = linear_scan(*(t.narrow(case.dim, start, length) for t in (inputs.gates, inputs.tokens)), dim=case.dim)
        torch.testing.assert_close(packed.narrow(case.dim, start, length), alone.states, rtol=1e-6, atol=1e-6)
    assert not torch.equal(packed, linear_scan(inputs.gates, inputs.tokens, dim=case.dim).states)


INVALID = {
    "no leading 0": [2, 5, 9],
    "negative": [0, -3, 9],
    "decreasing": [0, 7, 4, 9],
    "too large": [0, 4, 41],
    "far too large": [0, 4, 2**31 - 1],
    "smallest": [0, -(2**31), 4],
    "one wrong entry among many": [0, *range(1, 38), 37, 36, 39, 40],
    "first wrong, nothing packed": [1],
    "beyond 32 bits": [0, 4, 2**32 + 9],
    "beyond 62 bits": [0, 2**62, 9],
}


@pytest.mark.parametrize("offsets", INVALID.values(), ids=INVALID.keys())
@pytest.mark.parametrize("case", grid(T=(40,), initial=(False, True), **BOTH), ids=str)
def test_invalid_offsets_fill_everything_with_nan(case: Case, offsets: list[int], kernel_device: torch.device) -> None:
    # The kernels themselves: on the CPU the public function raises a sentence instead.
    case = dataclasses.replace(case, lengths=(0,) * (len(offsets) - 1))
    inputs = draw(case, kernel_device)
    dtype = torch.int64 if max(map(abs, offsets)) >= 2**31 + 1 else torch.int32
    inputs.cu_seqlens = torch.tensor(offsets, dtype=dtype, device=kernel_device)
    for name, output in run_implementation(launch, case, inputs).items():
        if output is None:
            assert name == "d_initial_state" and not case.initial
        else:
            assert output.isnan().all(), f"{name} hides that the offsets are invalid"


@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 1)], ids=str)
def test_offsets_of_either_width_and_any_place(lengths: tuple[int, ...], device: torch.device) -> None:
    case = Case(8, lengths=lengths, initial=True)
    inputs = draw(case, device)
    assert inputs.cu_seqlens is not None
    offsets, wanted = inputs.cu_seqlens, expected(case, inputs)
    n = len(offsets)
    last_in_memory = torch.full((1024,), -1, dtype=torch.int32, device=device)
    last_in_memory[-n:] = offsets
    column = torch.full((n, 3), -7, dtype=torch.int64, device=device)
    column[:, 1] = offsets
    for placed in (offsets.long(), last_in_memory[-n:], column[:, 1], column.int()[:, 1]):
        inputs.cu_seqlens = placed
        before = placed.clone()
        assert_within(run(case, inputs), wanted)
        assert torch.equal(placed, before)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (0, 0), (0, 3, 7), (2, 0, 7), (2, 3, 0), (0,)], ids=str)
@pytest.mark.parametrize("packed", [None, [0], [0, 0], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("dim", [-1, -2])
def test_nothing_to_scan(shape: tuple[int, ...], packed: list[int] | None, dim: int, device: torch.device) -> None:
    if len(shape) < -dim:
        pytest.skip("a vector has no channels")
    gates, tokens = (torch.ones(shape, dtype=torch.bfloat16, device=device, requires_grad=True) for _ in range(2))
    cu_seqlens = None if packed is None else torch.tensor(packed, device=device)
    state_shape = [*shape[:-1]] if dim == -1 else [*shape[:-2], shape[-1]]
    state_shape = state_shape if packed is None else [len(packed) - 1, *state_shape]
    initial = torch.full(state_shape, 2.0, device=device, requires_grad=True)
    states, final = linear_scan(gates, tokens, initial, dim=dim, cu_seqlens=cu_seqlens)
    assert states.shape == shape and states.dtype == torch.bfloat16 and states.device == tokens.device
    assert list(final.shape) == state_shape and final.dtype == torch.float32
    (states.sum() + final.sum()).backward()
    assert gates.grad is not None and gates.grad.shape == shape
    assert tokens.grad is not None and tokens.grad.shape == shape
    if packed is not None or shape[dim] == 0:
        assert (final == 2).all() and initial.grad is not None and (initial.grad == 1).all()
        assert (gates.grad == 0).all() and (states == 0).all()


@pytest.mark.parametrize("case", grid(T=(5, 130), lengths=(None, (2, 0, 3)), **BOTH), ids=str)
def test_final_state_is_the_last_state(case: Case, device: torch.device) -> None:
    outputs = run(case, draw(case, device))
    states, final = outputs["states"], outputs["final_state"]
    assert states is not None and final is not None
    if case.lengths is None:
        wanted = states.select(case.dim, 0 if case.reverse else -1)
        assert torch.equal(final, wanted)
    else:
        ends = [(0, 0, 1), (2, 2, 4)]
        for n, first, last in ends:
            assert torch.equal(final[n], states.select(case.dim, first if case.reverse else last))
        assert (final[1] == 0).all()


@pytest.mark.parametrize("case", grid(T=(130,), lengths=(None, (60, 0, 65)), **BOTH), ids=str)
def test_a_row_does_not_see_the_others(case: Case, device: torch.device) -> None:
    case = dataclasses.replace(case, rows=(2, 3), initial=True)
    clean = run(case, draw(case, device))
    inputs = draw(case, device)
    channels = -2 if case.dim == -1 else -1
    for tensor in (inputs.gates, inputs.tokens, inputs.d_states):
        assert tensor is not None
        kept = tensor.select(channels, 2)[1].clone()
        tensor.fill_(math.nan)
        tensor.select(channels, 2)[1].copy_(kept)
    dirty = run(case, inputs)
    for name in ("states", "d_gates", "d_tokens"):
        before, after = clean[name], dirty[name]
        assert before is not None and after is not None
        assert torch.equal(bits(before.select(channels, 2)[1]), bits(after.select(channels, 2)[1])), name
