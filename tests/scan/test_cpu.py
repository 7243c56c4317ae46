"""The CPU implementation: hand-computed values, then the sequential scan in double precision and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from scan import cpu
from scan.packing import lengths_to_cu_seqlens
from scan.reference import final_state, sequential_scan

REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DOUBLE = [torch.float64, torch.complex128]
# Empty sequences at the start, in the middle and at the end, a sequence of one step, slack behind the last offset.
LENGTHS = [0, 4, 0, 0, 1, 7, 0]
SLACK = 2

in_both_directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
in_both_layouts = pytest.mark.parametrize("dim", [-1, -2], ids=["channels_first", "channels_last"])
packed_or_not = pytest.mark.parametrize("packed", [False, True], ids=["one", "packed"])
with_state_or_not = pytest.mark.parametrize("with_initial", [False, True], ids=["zeros", "initial"])


class Problem(NamedTuple):
    """Arguments of a scan."""

    gates: Tensor
    tokens: Tensor
    initial: Tensor | None = None
    cu_seqlens: Tensor | None = None
    dim: int = -1
    reverse: bool = False
    log_gates: bool = False

    def forward(self) -> tuple[Tensor, Tensor]:
        """States and final state from the CPU implementation."""
        states, final = cpu.forward(*self, want_final=True)
        assert final is not None
        return states, final

    def backward(
        self,
        states: Tensor,
        d_states: Tensor | None,
        d_final: Tensor | None = None,
        needs: tuple[bool, bool, bool] = (True, True, True),
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients from the CPU implementation."""
        return cpu.backward(
            self.gates, states, self.initial, self.cu_seqlens, d_states, d_final, self.tokens.dtype,
            self.dim, self.reverse, self.log_gates, needs,
        )  # fmt: skip

    def truth(self) -> tuple[Tensor, Tensor]:
        """States and final state in double precision."""
        options = {"dim": self.dim, "reverse": self.reverse, "cu_seqlens": self.cu_seqlens}
        states = sequential_scan(self.gates, self.tokens, self.initial, log_gates=self.log_gates, **options)
        return states, final_state(states, self.initial, **options)

    def true_gradients(self, d_states: Tensor | None, d_final: Tensor | None) -> list[Tensor]:
        """Gradients in double precision, by PyTorch's autograd through the sequential scan."""
        inputs = [tensor for tensor in (self.gates, self.tokens, self.initial) if tensor is not None]
        leaves = [t.to(torch.promote_types(t.dtype, torch.float64)).detach().requires_grad_() for t in inputs]
        outputs = self._replace(**dict(zip(("gates", "tokens", "initial"), leaves, strict=False))).truth()
        given = [(o, d.to(o.dtype)) for o, d in zip(outputs, (d_states, d_final), strict=True) if d is not None]
        states, gradients = zip(*given, strict=True)
        return list(torch.autograd.grad(states, leaves, gradients, materialize_grads=True))


def problem(
    dim: int = -1,
    reverse: bool = False,
    packed: bool = False,
    with_initial: bool = False,
    log_gates: bool = False,
    gates_dtype: torch.dtype = torch.float64,
    tokens_dtype: torch.dtype = torch.float64,
    lengths: list[int] | None = None,
) -> Problem:
    """A random problem of 2 rows and 3 channels."""
    lengths = LENGTHS if lengths is None else lengths
    total = sum(lengths) + SLACK
    shape = (2, 3, total) if dim == -1 else (2, total, 3)
    gates, tokens = torch.randn(shape, dtype=gates_dtype) * 0.8, torch.randn(shape, dtype=tokens_dtype)
    initial = None
    if with_initial:
        initial = torch.randn((len(lengths), 2, 3) if packed else (2, 3), dtype=tokens_dtype)
    return Problem(gates, tokens, initial, lengths_to_cu_seqlens(lengths) if packed else None, dim, reverse, log_gates)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three steps, so that short sequences cross their borders."""
    monkeypatch.setattr(cpu, "_MIN_BLOCK_STEPS", 3)
    monkeypatch.setattr(cpu, "_MAX_BLOCK_STEPS", 3)


def test_by_hand() -> None:
    p = Problem(torch.tensor([0.5, 0.0, 0.5, 0.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    states, final = p.forward()
    assert states.tolist() == [1, 2, 4, 4] and final.item() == 4
    d_gates, d_tokens, d_initial = p.backward(states, torch.ones(4))
    assert d_gates.tolist() == [0, 1.5, 2, 4] and d_tokens.tolist() == [1, 1.5, 1, 1] and d_initial is None


def test_in_reverse_by_hand() -> None:
    p = Problem(torch.tensor([0.5, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]), torch.tensor(1.0), reverse=True)
    states, final = p.forward()
    assert states.tolist() == [9, 16, 7] and final.item() == 9
    d_gates, d_tokens, d_initial = p.backward(states, torch.ones(3), torch.tensor(1.0))
    assert d_tokens.tolist() == [2, 2, 5] and d_gates.tolist() == [32, 14, 5] and d_initial.item() == 15


def test_packed_by_hand() -> None:
    # Sequences of 2, 0 and 1 steps, then one step that belongs to none.
    initial = torch.tensor([[1.0], [20.0], [0.5]])
    p = Problem(torch.tensor([[2.0, 3.0, 5.0, 7.0]]), torch.ones(1, 4), initial, torch.tensor([0, 2, 2, 3]))
    states, final = p.forward()
    assert states.tolist() == [[3, 10, 3.5, 0]] and final.tolist() == [[10], [20], [3.5]]
    d_final = torch.tensor([[1.0], [2.0], [3.0]])
    d_gates, d_tokens, d_initial = p.backward(states, torch.ones(1, 4), d_final)
    assert d_tokens.tolist() == [[7, 2, 4, 0]] and d_gates.tolist() == [[7, 6, 2, 0]]
    assert d_initial.tolist() == [[14], [2], [20]]


def test_log_gates_by_hand() -> None:
    p = Problem(torch.tensor([-math.inf, 0.0, 0.0]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor(5.0), log_gates=True)
    states, _ = p.forward()
    assert states.tolist() == [1, 3, 6]
    d_gates, d_tokens, d_initial = p.backward(states, torch.ones(3))
    assert d_tokens.tolist() == [3, 2, 1] and d_gates.tolist() == [0, 2, 3] and d_initial.item() == 0


@in_both_layouts
@in_both_directions
@packed_or_not
@with_state_or_not
@pytest.mark.parametrize("log_gates", [False, True], ids=["gates", "logs"])
@pytest.mark.parametrize("tokens_dtype", DOUBLE, ids=["real_tokens", "complex_tokens"])
@pytest.mark.parametrize("gates_dtype", DOUBLE, ids=["real_gates", "complex_gates"])
def test_equals_the_sequential_scan_and_its_gradients(
    gates_dtype: torch.dtype,
    tokens_dtype: torch.dtype,
    log_gates: bool,
    with_initial: bool,
    packed: bool,
    reverse: bool,
    dim: int,
    short_blocks: None,
) -> None:
    p = problem(dim, reverse, packed, with_initial, log_gates, gates_dtype, tokens_dtype)
    states, final = p.forward()
    true_states, true_final = p.truth()
    torch.testing.assert_close((states, final), (true_states, true_final))
    d_states, d_final = torch.randn_like(states), torch.randn_like(final)
    for given in ((d_states, d_final), (d_states, None), (None, d_final)):
        expected = p.true_gradients(*given)
        found = [gradient for gradient in p.backward(states, *given) if gradient is not None]
        torch.testing.assert_close(found, expected)


def rounding(value: Tensor, truth: Tensor) -> Tensor:
    """What rounding the truth once to the dtype of a value may change, subnormal numbers included."""
    limits = torch.finfo(value.dtype)
    return truth.abs() * limits.eps / 2 + limits.smallest_normal * limits.eps


@in_both_directions
@packed_or_not
@pytest.mark.parametrize("dim", [-1, -2], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("tokens_dtype", REAL, ids=str)
@pytest.mark.parametrize("gates_dtype", REAL, ids=str)
def test_rounds_once(
    gates_dtype: torch.dtype, tokens_dtype: torch.dtype, dim: int, packed: bool, reverse: bool
) -> None:
    """Errors stay below a bound derived from the arithmetic: a carried state, and one rounding of each output."""
    p = problem(dim, reverse, packed, True, gates_dtype=gates_dtype, tokens_dtype=tokens_dtype, lengths=[9, 0, 50, 1])
    states, final = p.forward()
    accumulation = torch.promote_types(torch.promote_types(gates_dtype, tokens_dtype), torch.float32)
    assert states.dtype == tokens_dtype and final.dtype == accumulation
    true_states, true_final = p.truth()
    # T steps of two roundings each, relative to the scan of absolute values, whatever cancels.
    absolute = p._replace(gates=p.gates.abs(), tokens=p.tokens.abs(), initial=p.initial.abs())
    size, final_size = absolute.truth()
    steps = 60 * torch.finfo(accumulation).eps
    assert ((states.double() - true_states).abs() <= rounding(states, true_states) + steps * size).all()
    assert ((final.double() - true_final).abs() <= rounding(final, true_final) + steps * final_size).all()

    d_states, d_final = torch.randn_like(states), torch.randn_like(final)
    gradients = p.backward(states, d_states, d_final)
    truths = p.true_gradients(d_states, d_final)
    sizes = absolute.true_gradients(d_states.abs(), d_final.abs())
    factors = (torch.finfo(tokens_dtype).eps, 0, 0)  # d_gates multiplies a state that was rounded when stored
    for gradient, like, truth, size, factor in zip(gradients, p[:3], truths, sizes, factors, strict=True):
        assert gradient.dtype == like.dtype and gradient.shape == like.shape
        budget = rounding(gradient, truth) + (2 * steps + factor) * size
        assert ((gradient.double() - truth).abs() <= budget).all()


@in_both_directions
@pytest.mark.parametrize("time", [0, 1, 2, 15, 16, 17, 61, 509, 1023, 1024, 1025, 4099])
@pytest.mark.parametrize("channels", [1, 7, 127])
def test_every_length(channels: int, time: int, reverse: bool) -> None:
    p = Problem(torch.rand(channels, time).double(), torch.randn(channels, time).double(), reverse=reverse)
    states, final = p.forward()
    torch.testing.assert_close((states, final), p.truth())
    d_states = torch.randn_like(states)
    if time == 0:
        assert [g.shape for g in p.backward(states, d_states)[:2]] == [(channels, 0)] * 2
        assert final.tolist() == [0] * channels
    else:
        torch.testing.assert_close(list(p.backward(states, d_states)[:2]), p.true_gradients(d_states, None))


@pytest.mark.parametrize("shape", [(0, 7), (0, 3, 7), (2, 0, 7), (3, 0)], ids=str)
@in_both_layouts
def test_nothing_to_scan(dim: int, shape: tuple[int, ...]) -> None:
    p = Problem(torch.ones(shape), torch.ones(shape), dim=dim)
    states, final = p.forward()
    assert states.shape == shape and final.shape == states.movedim(dim, 0).shape[1:] and final.eq(0).all()
    d_gates, d_tokens, _ = p.backward(states, torch.ones(shape))
    assert d_gates.shape == shape and d_tokens.shape == shape


@pytest.mark.parametrize("values", [[0], [0, 0], [0, 0, 0]], ids=str)
def test_every_sequence_is_empty(values: list[int]) -> None:
    initial = torch.randn(len(values) - 1, 3)
    p = Problem(torch.full((3, 5), math.nan), torch.full((3, 5), math.nan), initial, torch.tensor(values))
    states, final = p.forward()
    assert states.eq(0).all() and torch.equal(final, initial)
    d_final = torch.randn_like(final)
    d_gates, d_tokens, d_initial = p.backward(states, torch.ones(3, 5), d_final)
    assert d_gates.eq(0).all() and d_tokens.eq(0).all() and torch.equal(d_initial, d_final)


def test_empty_sequences_between_single_steps() -> None:
    p = Problem(torch.rand(3, 2), torch.randn(3, 2), None, lengths_to_cu_seqlens([0, 1, 0, 1]))
    assert torch.equal(p.forward()[0], p.tokens)


def test_empty_sequences_change_nothing() -> None:
    p = problem(packed=True, lengths=[4, 5])
    with_empty = p._replace(cu_seqlens=torch.tensor([0, 0, 4, 4, 9, 9]))
    states, final = with_empty.forward()
    assert torch.equal(states, p.forward()[0])
    assert torch.equal(final[[1, 3]], p.forward()[1]) and final[[0, 2, 4]].eq(0).all()
    for found, expected in zip(with_empty.backward(states, states)[:2], p.backward(states, states)[:2], strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_offsets_may_be_a_column_of_a_table(dtype: torch.dtype) -> None:
    p = problem(packed=True)
    table = torch.stack((p.cu_seqlens.to(dtype), torch.full_like(p.cu_seqlens, 99, dtype=dtype)), dim=1)
    assert torch.equal(p._replace(cu_seqlens=table[:, 0]).forward()[0], p.forward()[0])


def test_wrong_offsets_raise_also_behind_the_public_checks() -> None:
    p = problem()._replace(cu_seqlens=torch.tensor([50, 114, 316]))
    with pytest.raises(ValueError, match="cu_seqlens must start with 0, but starts with 50"):
        p.forward()
    with pytest.raises(ValueError, match="cu_seqlens must end within the time axis of 14 steps, but ends at 15"):
        p._replace(cu_seqlens=torch.tensor([0, 15])).backward(p.tokens, p.tokens)


def test_packed_documents_equal_solo_runs_and_not_one_long_run() -> None:
    lengths = [50, 64, 202, 92, 123]
    p = Problem(torch.rand(3, 531), torch.randn(3, 531), None, lengths_to_cu_seqlens(lengths))
    states, _ = p.forward()
    solo = [
        Problem(gates, tokens).forward()[0]
        for gates, tokens in zip(p.gates.split(lengths, -1), p.tokens.split(lengths, -1), strict=True)
    ]
    assert torch.equal(states, torch.cat(solo, dim=-1))
    assert not torch.equal(states, p._replace(cu_seqlens=None).forward()[0])


def test_rows_are_packed_alike() -> None:
    p = problem(packed=True)
    rows = [p._replace(gates=p.gates[n], tokens=p.tokens[n]).forward()[0] for n in range(2)]
    assert torch.equal(p.forward()[0], torch.stack(rows))


@in_both_layouts
@in_both_directions
@pytest.mark.parametrize("wrong", [math.nan, math.inf], ids=str)
def test_sequences_are_isolated(wrong: float, reverse: bool, dim: int, short_blocks: None) -> None:
    """NaN or infinity in one sequence and in the slack leaves every other bit as it is."""
    p = problem(dim, reverse, packed=True, with_initial=True, lengths=[3, 0, 4, 5])
    spoilt_steps = torch.zeros(14, dtype=torch.bool)
    spoilt_steps[3:7] = spoilt_steps[12:] = True
    mask = spoilt_steps if dim == -1 else spoilt_steps.unsqueeze(-1)
    clean_steps = (~spoilt_steps).nonzero().flatten()

    def spoil(tensor: Tensor) -> Tensor:
        return tensor.masked_fill(mask, wrong)

    initial = p.initial.clone()
    initial[2] = wrong
    q = p._replace(gates=spoil(p.gates), tokens=spoil(p.tokens), initial=initial)
    (states, final), (spoilt_states, spoilt_final) = p.forward(), q.forward()
    assert torch.equal(spoilt_states.index_select(dim, clean_steps), states.index_select(dim, clean_steps))
    assert torch.equal(spoilt_final[[0, 1, 3]], final[[0, 1, 3]])
    assert not spoilt_states.narrow(dim, 3, 4).isfinite().any()
    assert spoilt_states.narrow(dim, 12, 2).eq(0).all()

    d_states, d_final = torch.randn_like(states), torch.randn_like(final)
    d_final_spoilt = d_final.clone()
    d_final_spoilt[2] = wrong
    found = q.backward(spoilt_states, spoil(d_states), d_final_spoilt)
    expected = p.backward(states, d_states, d_final)
    for gradient, clean in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(gradient.index_select(dim, clean_steps), clean.index_select(dim, clean_steps))
        assert gradient.narrow(dim, 12, 2).eq(0).all()
    assert torch.equal(found[2][[0, 1, 3]], expected[2][[0, 1, 3]])


def _layouts(values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same `[C, T]` values in other memory, with NaN wherever the view does not look."""
    channels, time = values.shape
    yield "transposed", values.t().contiguous().t()
    wide = torch.full((2 * channels, 3 * time), math.nan)
    wide[::2, 1::3] = values
    yield "strided", wide[::2, 1::3]
    sliced = torch.full((channels + 2, time + 5), math.nan)
    sliced[1:-1, 2:-3] = values
    yield "sliced", sliced[1:-1, 2:-3]


@in_both_directions
@pytest.mark.parametrize("operand", ["gates", "tokens", "both", "d_states"])
def test_any_strides(operand: str, reverse: bool) -> None:
    gates, tokens, d_states = torch.rand(3, 50), torch.randn(3, 50), torch.randn(3, 50)
    p = Problem(gates, tokens, reverse=reverse)
    states, _ = p.forward()
    expected = p.backward(states, d_states)
    for (name, g), (_, x), (_, d) in zip(_layouts(gates), _layouts(tokens), _layouts(d_states), strict=True):
        q = Problem(
            g if operand in ("gates", "both") else gates,
            x if operand in ("tokens", "both") else tokens,
            reverse=reverse,
        )
        found, _ = q.forward()
        assert torch.equal(found, states), name
        assert found.stride() == torch.empty_like(q.tokens).stride(), name
        gradients = q.backward(found, d if operand == "d_states" else d_states)
        for gradient, like, truth in zip(gradients[:2], (q.gates, q.tokens), expected[:2], strict=True):
            assert torch.equal(gradient, truth), name
            assert gradient.stride() == torch.empty_like(like).stride(), name


@in_both_layouts
def test_expanded_operands(dim: int) -> None:
    gates, tokens = torch.rand(3, 1).expand(3, 20), torch.randn(1, 20).expand(3, 20)
    d_states = torch.ones(1, 1).expand(3, 20)
    initial = torch.randn(1).expand(3 if dim == -1 else 20)
    p = Problem(gates, tokens, initial, dim=dim)
    q = Problem(*(tensor.contiguous() for tensor in p[:3]), dim=dim)
    states, final = p.forward()
    assert torch.equal(states, q.forward()[0]) and torch.equal(final, q.forward()[1])
    gradients = zip(p.backward(states, d_states, final), q.backward(states, d_states.contiguous(), final), strict=True)
    assert all(torch.equal(found, expected) for found, expected in gradients)


def test_odd_strides_of_an_axis_of_one() -> None:
    base = torch.randn(64)
    odd = base.as_strided((1, 9), (31, 1))
    plain = base[:9].reshape(1, 9)
    assert torch.equal(Problem(odd, odd).forward()[0], Problem(plain, plain).forward()[0])
    column = torch.rand(9, 1).t()
    assert torch.equal(Problem(column, column).forward()[0], Problem(*[column.contiguous()] * 2).forward()[0])


@in_both_directions
@packed_or_not
def test_inputs_are_left_alone_and_outputs_are_new(packed: bool, reverse: bool) -> None:
    p = problem(reverse=reverse, packed=packed, with_initial=True)
    states, final = p.forward()
    d_states, d_final = torch.randn_like(states), torch.randn_like(final)
    inputs = (p.gates, p.tokens, p.initial, states, d_states, d_final)
    before = [tensor.clone() for tensor in inputs]
    first = p.backward(states, d_states, d_final)
    second = p.backward(states, d_states, d_final)
    outputs = (*p.forward(), *first)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    storages = {tensor.untyped_storage().data_ptr() for tensor in (*inputs, *outputs)}
    assert len(storages) == len(inputs) + len(outputs)
    for output in outputs:
        output.fill_(7)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("time", [0, 1])
def test_shortest_inputs_share_no_memory_with_outputs(time: int) -> None:
    p = Problem(torch.zeros(3, time), torch.ones(3, time), torch.ones(3))
    states, final = p.forward()
    *_, d_initial = p.backward(states, torch.ones(3, time), final)
    storages = {t.untyped_storage().data_ptr() for t in (p.tokens, p.gates, p.initial, states, final, d_initial)}
    assert len(storages - {0}) == (6 if time else 3)


def test_final_state_only_if_wanted() -> None:
    states, final = cpu.forward(*problem(), want_final=False)
    assert final is None and states.isfinite().all()


@with_state_or_not
@pytest.mark.parametrize("needs", [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)], ids=str)
def test_only_what_is_needed(needs: tuple[bool, bool, bool], with_initial: bool) -> None:
    p = problem(with_initial=with_initial)
    states, final = p.forward()
    everything = p.backward(states, states, final)
    # States are factors of d_gates alone: where nobody needs that, they may hold anything.
    read = states if needs[0] else torch.full_like(states, math.nan)
    found = p.backward(read, states, final, needs)
    for gradient, expected, needed in zip(found, everything, needs, strict=True):
        if needed and expected is not None:
            assert torch.equal(gradient, expected)
        else:
            assert gradient is None


def test_no_gradients_from_above() -> None:
    p = problem(packed=True, with_initial=True)
    states, _ = p.forward()
    assert all(gradient.eq(0).all() for gradient in p.backward(states, None, None))


def test_no_initial_state_is_zeros() -> None:
    for packed in (False, True):
        p = problem(packed=packed)
        q = p._replace(initial=p.tokens.new_zeros((len(LENGTHS), 2, 3) if packed else (2, 3)))
        states, final = p.forward()
        assert torch.equal(states, q.forward()[0]) and torch.equal(final, q.forward()[1])
        for found, expected in zip(p.backward(states, states)[:2], q.backward(states, states)[:2], strict=True):
            assert torch.equal(found, expected)


def test_state_is_not_carried_in_16_bits() -> None:
    gates, tokens = torch.full((1, 8192), 255 / 256, dtype=torch.bfloat16), torch.ones(1, 8192, dtype=torch.bfloat16)
    states, _ = Problem(gates, tokens).forward()
    assert states[0, -1] == 256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_small_integers_are_exact(dtype: torch.dtype) -> None:
    gates = torch.randint(-1, 2, (3, 500)).to(dtype)
    tokens = torch.randint(-2, 3, (3, 500)).to(dtype)
    p = Problem(gates, tokens)
    assert torch.equal(p.forward()[0], p.truth()[0].to(dtype))


def test_long_sums_stay_accurate() -> None:
    tokens = 0.1 + 0.01 * torch.randn(1, 2**16)
    states, final = Problem(torch.ones(1, 2**16), tokens).forward()
    truth = tokens.double().cumsum(-1)
    # One rounding and no more: a plain float32 sum is wrong by some 50 roundings here.
    assert ((states - truth).abs() <= rounding(states, truth) * 1.001).all()
    assert states.dtype == torch.float32 and final.dtype == torch.float32
    _, d_tokens, _ = Problem(torch.ones(1, 2**16), tokens).backward(states, tokens)
    truth = tokens.double().flip(-1).cumsum(-1).flip(-1)
    assert ((d_tokens - truth).abs() <= rounding(d_tokens, truth) * 1.001).all()


def test_gates_of_any_size() -> None:
    gates = torch.cat((torch.rand(3, 64) * 2.4 - 1.2, torch.tensor([1e-30, 0.0, 1.0, -1.0]).expand(3, 4)), dim=-1)
    p = Problem(gates.double(), torch.randn(3, 68).double())
    torch.testing.assert_close(p.forward(), p.truth())
    p = p._replace(gates=torch.ones_like(p.gates))
    torch.testing.assert_close(p.forward()[0], p.tokens.cumsum(-1))


def test_complex_gates_with_real_tokens_make_complex_states() -> None:
    gates = torch.polar(torch.rand(3, 9) * 0.9, torch.rand(3, 9) * 6)
    for tokens in (torch.randn(3, 9), torch.randn(3, 9).bfloat16()):
        states, final = Problem(gates, tokens).forward()
        assert states.dtype == torch.complex64 and final.dtype == torch.complex64
        d_gates, d_tokens, _ = Problem(gates, tokens).backward(states, torch.randn_like(states))
        assert d_gates.dtype == torch.complex64 and d_tokens.dtype == tokens.dtype


lengths_lists = st.lists(st.integers(0, 9), min_size=1, max_size=6)
directions = st.booleans()
dims = st.sampled_from([-1, -2])


@hypothesis.given(lengths=lengths_lists, reverse=directions, dim=dims)
def test_packing_then_scanning_is_scanning_each(lengths: list[int], reverse: bool, dim: int) -> None:
    p = problem(dim, reverse, packed=True, with_initial=True, lengths=lengths)
    p = p._replace(gates=p.gates.float(), tokens=p.tokens.bfloat16())
    states, final = p.forward()
    d_states, d_final = torch.randn_like(states), torch.randn_like(final)
    d_gates, d_tokens, d_initial = p.backward(states, d_states, d_final)
    start = 0
    for n, length in enumerate(lengths):
        gates, tokens, solo_d_states, packed_states, packed_d_gates, packed_d_tokens = (
            t.narrow(dim, start, length) for t in (p.gates, p.tokens, d_states, states, d_gates, d_tokens)
        )
        solo = Problem(gates, tokens, p.initial[n], None, dim, reverse)
        solo_states, solo_final = solo.forward()
        assert torch.equal(solo_states, packed_states) and torch.equal(solo_final, final[n])
        gradients = solo.backward(solo_states, solo_d_states, d_final[n])
        for found, expected in zip(gradients, (packed_d_gates, packed_d_tokens, d_initial[n]), strict=True):
            assert torch.equal(found, expected)
        start += length
    assert states.narrow(dim, start, SLACK).eq(0).all()


@hypothesis.given(before=st.integers(0, 20), after=st.integers(0, 20), reverse=directions, dim=dims)
def test_splitting_and_passing_the_state_is_one_scan(before: int, after: int, reverse: bool, dim: int) -> None:
    p = problem(dim, reverse, with_initial=True, gates_dtype=torch.float32, tokens_dtype=torch.bfloat16)
    shape = (2, 3, before + after) if dim == -1 else (2, before + after, 3)
    p = p._replace(gates=torch.rand(shape), tokens=torch.randn(shape).bfloat16())
    states, final = p.forward()
    parts = [
        p._replace(gates=gates, tokens=tokens)
        for gates, tokens in zip(p.gates.split([before, after], dim), p.tokens.split([before, after], dim), strict=True)
    ]
    first, second = (1, 0) if reverse else (0, 1)
    found = [p.tokens, p.tokens]
    found[first], passed = parts[first].forward()
    found[second], last = parts[second]._replace(initial=passed).forward()
    assert torch.equal(torch.cat(found, dim), states) and torch.equal(last, final)


@hypothesis.given(lengths=lengths_lists, dim=dims, packed=st.booleans(), log_gates=st.booleans())
def test_reverse_is_flip_scan_flip(lengths: list[int], dim: int, packed: bool, log_gates: bool) -> None:
    # The last offset must be the end of the time axis: flipping would move slack to the front.
    p = problem(dim, True, packed, True, log_gates, lengths=[*lengths, SLACK])
    total = p.tokens.shape[dim] - SLACK
    p = p._replace(gates=p.gates.narrow(dim, 0, total), tokens=p.tokens.narrow(dim, 0, total))
    q = p._replace(gates=p.gates.flip(dim), tokens=p.tokens.flip(dim), reverse=False)
    if packed:
        q = q._replace(initial=p.initial.flip(0), cu_seqlens=lengths_to_cu_seqlens([SLACK, *reversed(lengths)]))
    (states, final), (flipped_states, flipped_final) = p.forward(), q.forward()
    assert torch.equal(states, flipped_states.flip(dim))
    assert torch.equal(final, flipped_final.flip(0) if packed else flipped_final)
    found, flipped = p.backward(states, states, final), q.backward(flipped_states, flipped_states, flipped_final)
    for gradient, expected in zip(found[:2], flipped[:2], strict=True):
        assert torch.equal(gradient, expected.flip(dim))
    assert torch.equal(found[2], flipped[2].flip(0) if packed else flipped[2])


@hypothesis.given(lengths=lengths_lists, reverse=directions, packed=st.booleans(), factor=st.integers(-3, 3))
def test_linear_in_tokens_and_initial_state(lengths: list[int], reverse: bool, packed: bool, factor: int) -> None:
    p = problem(-1, reverse, packed, True, lengths=lengths)
    q = p._replace(tokens=torch.randn_like(p.tokens), initial=torch.randn_like(p.initial))
    mixed = p._replace(tokens=p.tokens + factor * q.tokens, initial=p.initial + factor * q.initial)
    for found, a, b in zip(mixed.forward(), p.forward(), q.forward(), strict=True):
        torch.testing.assert_close(found, a + factor * b)


@hypothesis.given(time=st.integers(1, 40), channels=st.integers(1, 20), data=st.data())
def test_rows_are_independent(time: int, channels: int, data: st.DataObject) -> None:
    gates, tokens = torch.rand(channels, time), torch.randn(channels, time)
    states, _ = Problem(gates, tokens).forward()
    row = data.draw(st.integers(0, channels - 1))
    # A row on its own is computed outside of vector registers, where the compiler may fuse a product with its sum.
    torch.testing.assert_close(Problem(gates[row], tokens[row]).forward()[0], states[row])
    tokens[row] = math.nan
    others = [c for c in range(channels) if c != row]
    assert torch.equal(Problem(gates, tokens).forward()[0][others], states[others])
