"""Where tensors lie in memory: strides of every kind, what is beside the inputs, what is beside the outputs."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from scan import linear_scan, tuning
from tests.scan import sanitize
from tests.scan.budget import assert_within, expected
from tests.scan.calls import Call
from tests.scan.cases import Case, bits, draw, grid, laid_out
from tests.scan.runs import check, run

LAYOUTS = ("dense", "swapped", "turned", "expanded", "spread", "gaps", "strided", "offset", "odd", "scalar")
BOTH = {"dim": (-1, -2), "reverse": (False, True)}


def test_layouts_hold_what_they_should() -> None:
    values = torch.arange(24.0).reshape(2, 3, 4)
    for layout in ("swapped", "turned", "gaps", "strided", "offset", "odd"):
        view = laid_out(values, layout)
        assert torch.equal(view, values) and (layout == "odd" or view.is_contiguous() == (layout == "offset"))
    assert laid_out(values, "expanded").stride() == (12, 4, 0)
    assert laid_out(values[:1], "odd").stride() == (31, 4, 1)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("case", grid(T=(22,), rows=((2, 2),), **BOTH), ids=str)
def test_all_alike(layout: str, case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, gates_layout=layout, tokens_layout=layout, upstream_layout=layout), device)


@pytest.mark.parametrize("which", ["gates_layout", "tokens_layout", "upstream_layout"])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("case", grid(T=(24,), rows=((1, 2), (2, 1)), dim=(-1, -2)), ids=str)
def test_one_apart(which: str, layout: str, case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, **{which: layout}), device)


@pytest.mark.parametrize("which", ["gates_layout", "tokens_layout", "upstream_layout"])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_one_apart_in_a_pack(which: str, layout: str, device: torch.device) -> None:
    pack = {"lengths": (7, 0, 9), "initial": True, "reverse": True, "dtype": torch.bfloat16}
    check(Case(24, rows=(2, 1), dim=-1 if layout in LAYOUTS[::2] else -2, **{which: layout}, **pack), device)


@pytest.mark.parametrize("layout", ["gaps", "turned", "offset", "swapped", "strided"])
@pytest.mark.parametrize("case", grid(T=(6,), rows=((2, 1, 3, 1), (2, 2, 1, 2)), dim=(-1, -2)), ids=str)
def test_many_axes(layout: str, case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, gates_layout=layout, upstream_layout=layout), device)
    check(dataclasses.replace(case, tokens_layout=layout), device)


@pytest.mark.parametrize("rows", [(1,), (1, 1), (1, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("T", [1, 2, 33])
@pytest.mark.parametrize("dim", [-1, -2])
def test_axes_of_one_element(T: int, dim: int, rows: tuple[int, ...], device: torch.device) -> None:
    for gates_layout, tokens_layout in (("odd", "odd"), ("dense", "odd"), ("odd", "dense")):
        layouts = {"gates_layout": gates_layout, "tokens_layout": tokens_layout, "upstream_layout": "odd"}
        check(Case(T, rows=rows, dim=dim, **layouts), device)


def test_gradient_of_a_sum_of_pieces(device: torch.device) -> None:
    gates, tokens = (torch.rand(3, 9, device=device, requires_grad=True) for _ in range(2))
    left, right = linear_scan(gates, tokens).states.split([4, 5], 1)
    (left.sum() + 2 * right.sum()).backward()
    weights = torch.tensor([1.0] * 4 + [2.0] * 5, device=device).expand(3, 9)
    wanted = torch.autograd.grad(linear_scan(gates, tokens).states, (gates, tokens), weights.contiguous())
    assert gates.grad is not None and torch.equal(gates.grad, wanted[0])
    assert tokens.grad is not None and torch.equal(tokens.grad, wanted[1])


def _negated(tensor: Tensor) -> Tensor:
    """The same values, whose signs PyTorch has yet to turn: code on complex numbers hands such views on."""
    view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert view.is_neg() and torch.equal(view, tensor)
    return view


@pytest.mark.parametrize("which", ["gates", "tokens", "initial_state", "d_states", "d_final_state"])
@pytest.mark.parametrize("dim", [-1, -2])
def test_lazily_negated_tensors(which: str, dim: int, device: torch.device) -> None:
    case = Case(9, rows=(2,), dim=dim, initial=True)
    inputs = draw(case, device)
    wanted = expected(case, inputs)
    setattr(inputs, which, _negated(getattr(inputs, which)))
    assert_within(run(case, inputs), wanted)


@pytest.mark.parametrize("layout", ["swapped", "gaps", "strided", "scalar"])
@pytest.mark.parametrize("case", grid(T=(9,), rows=((2, 3),), lengths=(None, (4, 0, 3)), dim=(-1, -2)), ids=str)
def test_states_of_any_layout(layout: str, case: Case, device: torch.device) -> None:
    case = dataclasses.replace(case, initial=True)
    inputs = draw(case, device)
    for name in ("initial_state", "d_final_state"):
        setattr(inputs, name, laid_out(getattr(inputs, name), layout))
    assert_within(run(case, inputs), expected(case, inputs))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [-1, -2])
def test_states_have_the_strides_of_tokens(layout: str, dim: int, device: torch.device) -> None:
    case = Case(5, rows=(2, 3), dim=dim, tokens_layout=layout)
    inputs = draw(case, device)
    states = linear_scan(inputs.gates, inputs.tokens, dim=dim).states
    assert states.stride() == torch.empty_like(inputs.tokens).stride()
    assert states.untyped_storage().data_ptr() != inputs.tokens.untyped_storage().data_ptr()


@pytest.mark.parametrize("layout", ["dense", "swapped", "gaps", "offset"])
def test_every_layout_gives_the_same_bits(layout: str, device: torch.device) -> None:
    # Integers small enough for exact arithmetic: whatever the order, every layout must give the same bits.
    random = torch.Generator().manual_seed(1)
    gates = torch.randint(-1, 2, (3, 70), generator=random).float().to(device)
    tokens = torch.randint(-2, 3, (3, 70), generator=random).float().to(device)
    wanted = linear_scan(gates, tokens).states
    assert torch.equal(linear_scan(laid_out(gates, layout), laid_out(tokens, layout)).states, wanted)
    assert torch.equal(
        linear_scan(laid_out(gates.t(), layout), laid_out(tokens.t(), layout), dim=-2).states, wanted.t()
    )


class _Guards:
    """`torch.empty` and `torch.empty_like` that leave a poisoned margin on both sides of what they return."""

    MARGIN = 1024
    POISON = 0x5A

    def __init__(self) -> None:
        self.wholes: list[Tensor] = []

    def empty_like(self, tensor: Tensor, **keywords: object) -> Tensor:
        model = _EMPTY_LIKE(tensor, **keywords, device="meta")
        return self._guarded(model, tensor.device)

    def empty(self, *shape: int | list[int], **keywords: object) -> Tensor:
        device = torch.device(keywords.pop("device", "cpu"))  # type: ignore[arg-type]
        return self._guarded(_EMPTY(*shape, **keywords, device="meta"), device)

    def _guarded(self, model: Tensor, device: torch.device) -> Tensor:
        size = model.untyped_storage().nbytes()
        whole = torch.full((2 * self.MARGIN + -(-size // 16) * 16,), self.POISON, dtype=torch.uint8, device=device)
        self.wholes.append(whole)
        start = self.MARGIN // model.element_size()
        return whole.view(model.dtype).as_strided(model.shape, model.stride(), start)

    def assert_intact(self, outputs: list[Tensor]) -> None:
        assert self.wholes
        for whole in self.wholes:
            for margin in (whole[: self.MARGIN], whole[-self.MARGIN :]):
                assert (margin == self.POISON).all(), "memory beside an output was written to"
        wholes = {whole.untyped_storage().data_ptr() for whole in self.wholes}
        assert all(o.untyped_storage().data_ptr() in wholes for o in outputs), "an output was not guarded"


_EMPTY, _EMPTY_LIKE = torch.empty, torch.empty_like


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Guards]:
    guards = _Guards()
    monkeypatch.setattr(torch, "empty", guards.empty)
    monkeypatch.setattr(torch, "empty_like", guards.empty_like)
    yield guards


@pytest.mark.parametrize("lengths", [None, (5, 0, 8), (0, 0)], ids=["", "packed", "slack"])
@pytest.mark.parametrize("case", grid(T=(1, 13, 33), initial=(True,), **BOTH), ids=str)
def test_nothing_beside_the_outputs_is_written(
    case: Case, lengths: tuple[int, ...] | None, kernel_device: torch.device, guards: _Guards
) -> None:
    if lengths is not None and case.T < sum(lengths):
        pytest.skip("the pack is longer than the time axis")
    for layout in ("dense", "swapped"):
        case = dataclasses.replace(case, lengths=lengths, tokens_layout=layout, rows=(2,))
        outputs = run(case, draw(case, kernel_device))
        guards.assert_intact([outputs["states"], outputs["d_gates"], outputs["d_tokens"]])  # type: ignore[list-item]


@pytest.mark.parametrize("which", ["gates", "tokens"])
@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("rows", [(4,), (2, 2)], ids=str)
def test_strides_beyond_32_bits(which: str, dim: int, rows: tuple[int, ...], kernel_device: torch.device) -> None:
    # Rows 2**30 elements apart: the last begins 3 * 2**30 behind the first, which 32 bits would wrap to a place before.
    if kernel_device.type == "cuda":
        if torch.cuda.get_device_properties(0).total_memory < 15 * 2**30:
            pytest.skip("needs 13 GiB of GPU memory")
        apart = _apart(lambda n: torch.zeros(n, dtype=torch.float16, device=kernel_device))
    else:
        apart = _apart(_untouched)
    case = Case(5, torch.float16, rows=rows, dim=dim)
    inputs = draw(case)
    far = apart(getattr(inputs, which).to(kernel_device), dim)
    near = [getattr(inputs, name).to(kernel_device) for name in ("gates", "tokens") if name != which]
    arguments = (far, *near) if which == "gates" else (*near, far)
    output = linear_scan(*arguments, dim=dim)
    assert torch.equal(output.states, linear_scan(*(a.contiguous() for a in arguments), dim=dim).states)


def _apart(allocate: Callable[[int], Tensor]) -> Callable[[Tensor, int], Tensor]:
    step = 2**30

    def place(values: Tensor, dim: int) -> Tensor:
        rows = values.movedim(dim, -1)
        # What wraps around lands inside the allocation and reads as 0.
        flat = allocate(6 * step)
        view = flat.as_strided(rows.shape, (*((2 * step, step) if rows.ndim == 3 else (step,)), 1), 2 * step)
        return view.copy_(rows).movedim(-1, dim)

    return place


def _untouched(n: int) -> Tensor:
    """Zeros that take no memory before they are written."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's value; Python has the name from 3.13 on
    pages = mmap.mmap(-1, 2 * n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    return torch.frombuffer(pages, dtype=torch.float16)


def test_bits_tell_signs_and_nan() -> None:
    values = torch.tensor([0.0, float("nan")])
    assert torch.equal(bits(values), bits(values.clone())) and not torch.equal(bits(values[0]), bits(-values[0]))


# Of 16 bits, as channels enough run ahead in shared memory; whole tiles and not, blocks of channels and what is left.
AT_ONCE = [
    Call(
        Case(T, dtype, rows=(2, C), dim=-2, reverse=reverse, initial=initial, lengths=lengths, log=log),
        tile=tuning.Tile(32, 4, width, 4, stages),
    )
    for T, dtype, C, lengths, initial, log, width, stages in [
        (128, torch.bfloat16, 32, None, False, False, 8, 3),
        (96, torch.float16, 64, None, True, False, 4, 5),
        (75, torch.bfloat16, 40, None, True, True, 8, 4),
        (1, torch.bfloat16, 32, None, True, False, 8, 3),
        (99, torch.bfloat16, 32, (33, 0, 31, 7), True, False, 8, 3),
    ]
    for reverse in (False, True)
]


@pytest.mark.parametrize("call", AT_ONCE, ids=str)
def test_steps_that_run_ahead_at_once(call: Call, kernel_device: torch.device) -> None:
    sanitize.check(call, kernel_device)
