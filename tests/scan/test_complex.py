"""Complex gates and tokens: the kernels, where there are any, against the sequential scan in complex128.

As in test_kernels.py, a process with neither a GPU nor the interpreter tests the CPU operator.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from scan import cpu, launch, linear_scan, tuning
from tests.conftest import INTERPRETING
from tests.scan.budget import assert_within, expected
from tests.scan.cases import COMPLEX, DTYPES, NAMES, Case, bits, draw, grid, interpretable
from tests.scan.runs import check, run, run_implementation

# NumPy's remarks on arithmetic with infinities, in the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

BOTH = {"dim": (-1, -2), "reverse": (False, True)}
LENGTHS = (9, 0, 17, 1, 6)
# Gates and tokens, of which at least one is complex.
PAIRS = [pair for pair in itertools.product((*DTYPES, *COMPLEX), repeat=2) if any(dtype.is_complex for dtype in pair)]
USUAL = [
    (torch.complex64, torch.complex64), (torch.complex128, torch.complex128),
    (torch.float32, torch.complex64), (torch.complex64, torch.float32),
]  # fmt: skip


def over(pairs: list[tuple[torch.dtype, torch.dtype]], **axes: tuple[object, ...]) -> list[Case]:
    """Every combination of pairs of dtypes and other axes."""
    return [dataclasses.replace(case, gates_dtype=g, dtype=x) for case in grid(**axes) for g, x in pairs]


@pytest.mark.parametrize("case", over(USUAL, T=(1, 2, 3, 4, 5, 8, 31, 33), initial=(True,), **BOTH), ids=str)
def test_short(case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, rows=(2,), log=case.T % 2 == 0), device)


@pytest.mark.parametrize("case", over(PAIRS, T=(21,), dim=(-1, -2)), ids=str)
def test_every_pair_of_dtypes(case: Case, device: torch.device) -> None:
    if INTERPRETING and not interpretable(case.dtype, case.gates_dtype):
        pytest.skip("the interpreter casts float64 to bfloat16 as if both were integers")
    check(dataclasses.replace(case, initial=True, reverse=case.dim == -1), device)
    check(dataclasses.replace(case, lengths=(4, 0, 11), log=True, reverse=case.dim == -2), device)


@pytest.mark.parametrize("T", [63, 64, 65, 127, 129, 511, 512, 513, 1026])
@pytest.mark.parametrize("case", over(USUAL[:2], T=(1,), reverse=(False, True)), ids=str)
def test_around_tiles(case: Case, T: int, device: torch.device) -> None:
    check(dataclasses.replace(case, T=T, rows=(2,), initial=True), device)


@pytest.mark.parametrize("case", over(USUAL[:2], T=(63, 64, 65, 130), rows=((2, 9),), **BOTH), ids=str)
def test_channels(case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, initial=case.reverse), device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", over(USUAL, T=(4099, 33_752, 100_003), initial=(True,), **BOTH), ids=str)
def test_long(case: Case, device: torch.device) -> None:
    check(case, device)
    check(dataclasses.replace(case, lengths=(case.T // 3, 0, 1, case.T // 2)), device)


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [-1, -2])
def test_beyond_32_bits(dim: int, reverse: bool, device: torch.device) -> None:
    T = 2**30 + 76
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs 60 GiB of GPU memory")
    gate = torch.tensor(0.5j, dtype=torch.complex64, device=device)
    tokens = torch.zeros(T, dtype=torch.complex64, device=device)
    tokens[::1000] = 1
    shape = (T,) if dim == -1 else (T, 1)
    states = linear_scan(gate.expand(shape), tokens.view(shape), dim=dim, reverse=reverse).states.flatten()
    step = -1 if reverse else 1
    for start in (1_000_000, 2**29 // 1000 * 1000, T // 1000 * 1000):
        for m in range(4):
            assert states[start + step * m].item() == 0.5j**m


@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3), (2, 2, 2), ()], ids=str)
@pytest.mark.parametrize("case", over(USUAL[:1], T=(1, 6), **BOTH), ids=str)
def test_rows(rows: tuple[int, ...], case: Case, device: torch.device) -> None:
    if not rows and case.dim == -2:
        pytest.skip("a vector has no channels")
    check(dataclasses.replace(case, rows=rows, initial=True), device)


LAYOUTS = ("swapped", "expanded", "spread", "scalar", "gaps", "strided", "offset", "odd", "turned")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", over(USUAL[:1] + USUAL[2:], T=(12,), rows=((2, 4),), dim=(-1, -2)), ids=str)
def test_any_strides(case: Case, layout: str, device: torch.device) -> None:
    for name in ("gates_layout", "tokens_layout", "upstream_layout"):
        check(dataclasses.replace(case, **{name: layout}, reverse=name == "tokens_layout"), device)


@pytest.mark.parametrize("case", over(USUAL[:2], T=(7,), lengths=(None, (3, 0, 4)), dim=(-1, -2)), ids=str)
def test_conjugates_that_are_a_mark_only(case: Case, device: torch.device) -> None:
    case = dataclasses.replace(case, initial=True)
    inputs = draw(case, device)
    wanted = expected(case, inputs)
    for name, tensor in list(vars(inputs).items()):
        if name != "cu_seqlens":
            setattr(inputs, name, tensor.conj().resolve_conj().conj())
            assert getattr(inputs, name).is_conj()
    assert_within(run(case, inputs), wanted)


# Empty sequences at the front, at the back and side by side; sequences of one step; ends on and beside group borders.
PACKS = [(0, 4, 4, 9), (0, 1, 0, 1), (7, 0, 0, 1, 8, 16, 1, 1, 31, 0), (3, 64, 63, 1), (0,), ()]


@pytest.mark.parametrize("slack", [0, 5], ids="slack{}".format)
@pytest.mark.parametrize("lengths", PACKS, ids=lambda lengths: "_".join(map(str, lengths)) or "none")
@pytest.mark.parametrize("case", over(USUAL[:2], T=(0,), **BOTH), ids=str)
def test_packed(case: Case, lengths: tuple[int, ...], slack: int, device: torch.device) -> None:
    T = sum(lengths) + slack
    check(dataclasses.replace(case, T=T, lengths=lengths, rows=(2,), initial=not slack), device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("case", over(USUAL[:1], T=(9,), lengths=(None, (3, 0, 5)), dim=(-1, -2)), ids=str)
def test_initial_state_of_another_dtype(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    inputs = draw(dataclasses.replace(case, initial=True), device)
    assert inputs.initial_state is not None
    # Whole numbers are values of every dtype.
    whole = torch.view_as_real(inputs.initial_state).round()
    inputs.initial_state = torch.view_as_complex(whole).to(dtype) if dtype.is_complex else whole[..., 0].to(dtype)
    outputs = run(case, inputs)
    gradient = outputs["d_initial_state"]
    assert gradient is not None and gradient.dtype == dtype
    assert_within(outputs, expected(case, inputs))


@pytest.mark.parametrize("lengths", [None, (4, 0, 11)], ids=["", "packed"])
@pytest.mark.parametrize("case", over(USUAL[:1], T=(21,), upstream=("states", "final"), **BOTH), ids=str)
def test_one_of_two_gradients_arrives(case: Case, lengths: tuple[int, ...] | None, device: torch.device) -> None:
    check(dataclasses.replace(case, lengths=lengths, initial=case.reverse), device)


@pytest.mark.parametrize("lengths", [None, (4, 0, 11)], ids=["", "packed"])
@pytest.mark.parametrize("case", over(USUAL[:1] + USUAL[2:], T=(21,), dim=(-1, -2), log=(False, True)), ids=str)
def test_gradients_only_for_what_asks(case: Case, lengths: tuple[int, ...] | None, kernel_device: torch.device) -> None:
    case = dataclasses.replace(case, lengths=lengths, initial=True)
    inputs = draw(case, kernel_device)
    full = run_implementation(launch, case, inputs)
    for needs in itertools.product((False, True), repeat=3):
        part = run_implementation(launch, case, inputs, needs)
        for needed, name in zip(needs, ("d_gates", "d_tokens", "d_initial_state"), strict=True):
            gradient, wanted = part[name], full[name]
            assert (gradient is not None) is needed
            if gradient is not None and wanted is not None:
                assert torch.equal(bits(gradient), bits(wanted)), f"{name} depends on what else is asked for"


@pytest.mark.parametrize("case", over(USUAL[:2], T=(5, 130), lengths=(None, (2, 0, 3)), **BOTH), ids=str)
def test_final_state_is_the_last_state(case: Case, device: torch.device) -> None:
    outputs = run(case, draw(case, device))
    states, final = outputs["states"], outputs["final_state"]
    assert states is not None and final is not None
    if case.lengths is None:
        assert torch.equal(final, states.select(case.dim, 0 if case.reverse else -1))
    else:
        for n, first, last in ((0, 0, 1), (2, 2, 4)):
            assert torch.equal(final[n], states.select(case.dim, first if case.reverse else last))
        assert (final[1] == 0).all()


def _of_other_sequences(outputs: dict[str, Tensor | None], case: Case, but: int) -> list[Tensor]:
    parts = []
    for n, length in enumerate(LENGTHS):
        for name, output in outputs.items():
            if n != but and output is not None:
                parts.append(output[n] if name.endswith("state") else output.narrow(case.dim, case.offsets[n], length))
    return parts


@pytest.mark.parametrize("bad", [0, 2, 3, 4])
@pytest.mark.parametrize("case", over(USUAL[:1] + USUAL[2:], T=(36,), lengths=(LENGTHS,), **BOTH), ids=str)
def test_a_sequence_keeps_its_poison(case: Case, bad: int, device: torch.device) -> None:
    case = dataclasses.replace(case, rows=(2,), initial=True)
    clean = _of_other_sequences(run(case, draw(case, device)), case, bad)
    for poison in (math.nan, math.inf, 1e30):
        inputs = draw(case, device)
        for what in ("gates", "tokens", "initial_state", "d_states", "d_final_state"):
            tensor = getattr(inputs, what)
            value = complex(poison, -poison) if tensor.is_complex() else poison
            if what.endswith("state"):
                tensor[bad].fill_(value)
            else:
                tensor.narrow(case.dim, case.offsets[bad], LENGTHS[bad]).fill_(value)
        for what in (inputs.gates, inputs.tokens, inputs.d_states):
            assert what is not None
            what.narrow(case.dim, sum(LENGTHS), 3).fill_(math.nan)
        dirty = run(case, inputs)
        for before, after in zip(clean, _of_other_sequences(dirty, case, bad), strict=True):
            assert torch.equal(bits(before), bits(after)), f"{poison} came out of its sequence"
        for name in ("states", "d_gates", "d_tokens"):
            output = dirty[name]
            assert output is not None and (output.narrow(case.dim, sum(LENGTHS), 3) == 0).all(), name


@pytest.mark.parametrize("lengths", [None, (12,)], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(12,), dtype=(torch.complex64,), **BOTH), ids=str)
def test_a_product_beyond_the_range_is_no_reset(
    case: Case, lengths: tuple[int, ...] | None, device: torch.device
) -> None:
    case = dataclasses.replace(case, lengths=lengths, rows=(1,), initial=True)
    inputs = draw(case, device)
    assert inputs.initial_state is not None
    # Gates whose product is Inf - Inf, and small ones behind them: the exact state is finite, and no other may come.
    inputs.tokens.zero_()
    inputs.gates.fill_(1)
    order = list(range(case.T))[:: -1 if case.reverse else 1]
    for t, gate in zip(order[4:], (1e30 + 1e30j, 1e30 + 1e30j, 1e-30 - 1e-30j, 1e-30 - 1e-30j), strict=False):
        inputs.gates.select(case.dim, t).fill_(gate)
    inputs.initial_state.fill_(1e-30)
    final = run(case, inputs)["final_state"]
    assert final is not None
    wrong = final.isfinite() & ((final - 4e-30).abs() > 1e-34)
    assert not wrong.any()


@pytest.mark.parametrize("offsets", [[2, 5, 9], [0, -3, 9], [0, 7, 4, 9], [0, 4, 41], [1]], ids=str)
@pytest.mark.parametrize("case", over(USUAL[:1] + USUAL[2:], T=(40,), **BOTH), ids=str)
def test_invalid_offsets_fill_everything_with_nan(case: Case, offsets: list[int], kernel_device: torch.device) -> None:
    case = dataclasses.replace(case, lengths=(0,) * (len(offsets) - 1), initial=True)
    inputs = draw(case, kernel_device)
    inputs.cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=kernel_device)
    for name, output in run_implementation(launch, case, inputs).items():
        assert output is not None and output.isnan().all(), f"{name} hides that the offsets are invalid"


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (2, 0, 7), (2, 3, 0), (0,)], ids=str)
@pytest.mark.parametrize("packed", [None, [0], [0, 0]], ids=str)
def test_nothing_to_scan(shape: tuple[int, ...], packed: list[int] | None, device: torch.device) -> None:
    gates, tokens = (torch.ones(shape, dtype=torch.complex64, device=device, requires_grad=True) for _ in range(2))
    cu_seqlens = None if packed is None else torch.tensor(packed, device=device)
    states, final = linear_scan(gates, tokens, cu_seqlens=cu_seqlens)
    assert states.shape == shape and states.dtype == final.dtype == torch.complex64 and (final == 0).all()
    (states.sum() + final.sum()).abs().backward()
    assert gates.grad is not None and (gates.grad == 0).all()


@pytest.mark.parametrize("real", ["", "gates", "tokens", "initial_state"])
@pytest.mark.parametrize(
    "case", [Case(3, rows=(2,)), Case(4, rows=(2,), dim=-2, reverse=True, log=True, lengths=(1, 0, 2))], ids=str
)
def test_gradcheck(real: str, case: Case, device: torch.device) -> None:
    cu_seqlens = None if case.lengths is None else torch.tensor(case.offsets, device=device)
    shapes = {"gates": case.shape, "tokens": case.shape, "initial_state": case.state_shape}
    leaves = [
        torch.randn(shape, dtype=torch.float64 if name == real else torch.complex128).mul(0.5).to(device)
        for name, shape in shapes.items()
    ]

    def scanned(gates: Tensor, tokens: Tensor, initial_state: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear_scan(gates, tokens, initial_state, cu_seqlens=cu_seqlens, **case.keywords))

    assert torch.autograd.gradcheck(scanned, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)


def test_kernels_are_what_runs(kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "forward", None)
    monkeypatch.setattr(cpu, "backward", None)
    check(Case(9, torch.complex64), kernel_device)


def _tiles() -> dict[str, tuple[str, torch.dtype, tuning.Tile]]:
    """Everything that tuning returns for complex states, by layout."""
    found: dict[str, tuple[str, torch.dtype, tuning.Tile]] = {}
    for T, dtype, packed in itertools.product((1, 60, 120, 500, 600, 2**20), COMPLEX, (False, True)):
        for layout, tile in (
            ("complex_time_contiguous", tuning.complex_time_contiguous(T, dtype.itemsize, packed=packed)),
            ("complex_channels_last", tuning.complex_channels_last(T, dtype.itemsize)),
        ):
            # The interpreter knows no warps and no stages.
            shown = tile[:3] if INTERPRETING else tile
            found["-".join([layout, NAMES[dtype], *map(str, shown)])] = (layout, dtype, tile)
    return found


TILES = _tiles()


@pytest.mark.parametrize(("layout", "dtype", "tile"), TILES.values(), ids=TILES.keys())
def test_every_configuration_alone(
    layout: str, dtype: torch.dtype, tile: tuning.Tile, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, layout, lambda *_, **__: tile)
    monkeypatch.setattr(launch, "_plans", {})  # launches are kept by shape, as a process has one tuning
    steps, dim = tile.groups * tile.width, -1 if layout == "complex_time_contiguous" else -2
    for T, reverse, lengths in (
        (steps, False, None),
        (2 * steps - 1, True, None),
        (steps + 2, False, None),
        (steps + 3, True, (steps - 1, 0, 1, 2)),
        (steps + 3, False, (steps - 1, 0, 1, 2)),
    ):
        case = Case(T, dtype, rows=(2,), dim=dim, reverse=reverse, lengths=lengths, initial=True)
        inputs = draw(case, kernel_device)
        assert_within(run_implementation(launch, case, inputs), expected(case, inputs))
