"""The scan against the sequential scan in float64, forward and backward, within the error of rounding alone.

In the interpreter and on a GPU these are the kernels; in a process with neither, the CPU operator.
"""

from __future__ import annotations

import dataclasses
import itertools

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from scan import launch, tuning
from tests.conftest import INTERPRETING
from tests.scan.budget import assert_within, expected
from tests.scan.cases import DTYPES, NAMES, Case, bits, draw, grid, interpretable
from tests.scan.runs import check, run, run_implementation

BOTH = {"dim": (-1, -2), "reverse": (False, True)}
USUAL = (torch.float32, torch.bfloat16)
MIXED = [(g, x) for g, x in itertools.permutations(DTYPES, 2)]


@pytest.mark.parametrize("case", grid(T=(*range(1, 10), 15, 16, 17, 31, 33), dtype=DTYPES, **BOTH), ids=str)
def test_short(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("case", grid(T=(127, 128, 129, 130), dtype=USUAL, **BOTH), ids=str)
def test_around_a_row_of_groups(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("case", grid(T=(511, 512, 513), dtype=USUAL, **BOTH), ids=str)
def test_around_a_tile(case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, rows=(2,), initial=True), device)


@pytest.mark.parametrize("case", grid(T=(1000, 1023, 1025), dtype=USUAL, reverse=(False, True)), ids=str)
def test_several_tiles(case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, rows=(2,), initial=True), device)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", grid(T=(1021, 4099, 8192), dtype=DTYPES, **BOTH) + grid(T=(33_753,), dtype=USUAL, **BOTH), ids=str
)
def test_long(case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, rows=(7,), initial=True), device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", grid(T=(65_537, 100_003), **BOTH), ids=str)
def test_longer_than_a_power_of_two_of_16_bits(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3), (3, 1), (2, 2, 2), (), (35,)], ids=str)
@pytest.mark.parametrize("case", grid(T=(5, 61), **BOTH), ids=str)
def test_rows(rows: tuple[int, ...], case: Case, device: torch.device) -> None:
    if not rows and case.dim == -2:
        pytest.skip("a vector has no channels")
    check(dataclasses.replace(case, rows=rows), device)


# Empty sequences at the front, at the back and side by side; sequences of one step; ends on and beside group borders.
PACKS = [
    (0, 4, 4, 9),
    (0, 1, 0, 1),
    (7, 0, 0, 1, 8, 16, 1, 1, 31, 0),
    (3, 128, 127, 1),
    (0,),
    (),
]


@pytest.mark.parametrize("slack", [0, 5], ids="slack{}".format)
@pytest.mark.parametrize("lengths", PACKS, ids=lambda lengths: "_".join(map(str, lengths)) or "none")
@pytest.mark.parametrize("case", grid(T=(0,), initial=(False, True), **BOTH), ids=str)
def test_packed(case: Case, lengths: tuple[int, ...], slack: int, device: torch.device) -> None:
    check(dataclasses.replace(case, T=sum(lengths) + slack, lengths=lengths, rows=(2,)), device)


@pytest.mark.parametrize("case", grid(T=(70,), lengths=((9, 0, 33, 1, 20),), dtype=DTYPES, log=(False, True)), ids=str)
def test_packed_in_every_dtype(case: Case, device: torch.device) -> None:
    check(dataclasses.replace(case, rows=(2, 3), initial=True), device)
    check(dataclasses.replace(case, rows=(2, 3), initial=True, dim=-2, reverse=True), device)


@pytest.mark.parametrize("case", grid(T=(3, 37), dtype=DTYPES, initial=(False, True), log=(True,), **BOTH), ids=str)
def test_log_gates(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("case", grid(T=(1, 21), dtype=DTYPES, initial=(True,), **BOTH), ids=str)
def test_initial_state(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", grid(T=(9,), lengths=(None, (3, 0, 5)), dim=(-1, -2), initial=(True,)), ids=str)
def test_initial_state_of_another_dtype(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    inputs = draw(case, device)
    assert inputs.initial_state is not None
    # The values of a narrow dtype are values of every other.
    inputs.initial_state = inputs.initial_state.bfloat16().half().to(dtype)
    outputs = run(case, inputs)
    assert_within(outputs, expected(case, inputs))
    gradient = outputs["d_initial_state"]
    assert gradient is not None and gradient.dtype == dtype


@pytest.mark.parametrize("case", [Case(21, x, g, initial=True) for g, x in MIXED], ids=str)
def test_mixed_dtypes(case: Case, device: torch.device) -> None:
    if INTERPRETING and not interpretable(case.dtype, case.gates_dtype):
        pytest.skip("the interpreter casts float64 to bfloat16 as if both were integers")
    check(case, device)
    check(dataclasses.replace(case, dim=-2, reverse=True, lengths=(4, 0, 11)), device)


LEFT = [(torch.float32, 2052), (torch.float32, 2054), (torch.float32, 3000), (torch.bfloat16, 2056)]


# Rows of several tiles that begin anywhere in a line of memory: whole groups may stand before the first step, and what
# leaves the row passes through them, whether or not anything has entered it.
@pytest.mark.parametrize(("dtype", "T"), LEFT)
@pytest.mark.parametrize("reverse", [False, True])
def test_what_leaves_a_row_that_begins_within_a_line(
    T: int, dtype: torch.dtype, reverse: bool, device: torch.device
) -> None:
    # The final state of a descending scan, and, of an ascending one, the gradient of the initial state.
    for case in (
        Case(T, dtype, rows=(3,), reverse=reverse),
        Case(T, dtype, rows=(3,), reverse=reverse, initial=True, upstream="states"),
    ):
        inputs = draw(case, device)
        inputs.gates.abs_().clamp_(min=0.25)  # nothing ends in a gate of zero by itself
        outputs = run(case, inputs)
        assert_within(outputs, expected(case, inputs))


@pytest.mark.parametrize("lengths", [None, (4, 0, 11)], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(21,), upstream=("states", "final"), initial=(False, True), **BOTH), ids=str)
def test_one_of_two_gradients_arrives(case: Case, lengths: tuple[int, ...] | None, device: torch.device) -> None:
    check(dataclasses.replace(case, lengths=lengths), device)


NEEDS = list(itertools.product((False, True), repeat=3))


@pytest.mark.parametrize("lengths", [None, (4, 0, 11)], ids=["", "packed"])
@pytest.mark.parametrize("case", grid(T=(21,), initial=(True,), **BOTH), ids=str)
def test_gradients_only_for_what_asks(case: Case, lengths: tuple[int, ...] | None, kernel_device: torch.device) -> None:
    case = dataclasses.replace(case, lengths=lengths)
    inputs = draw(case, kernel_device)
    full = run_implementation(launch, case, inputs)
    for needs in NEEDS:
        part = run_implementation(launch, case, inputs, needs)
        for needed, name in zip(needs, ("d_gates", "d_tokens", "d_initial_state"), strict=True):
            gradient, wanted = part[name], full[name]
            assert (gradient is not None) is needed
            if gradient is not None and wanted is not None:
                assert torch.equal(bits(gradient), bits(wanted)), f"{name} depends on what else is asked for"


def _configurations() -> dict[str, tuple[str, torch.dtype, tuning.Tile]]:
    """Everything that tuning returns, for any length, dtype and direction, by layout."""
    lengths = sorted({max(1, 2**k + step) for k in range(22) for step in (-1, 0, 1)})
    found: dict[str, tuple[str, torch.dtype, tuning.Tile]] = {}
    for T, dtype, backward in itertools.product(lengths, (*USUAL, torch.float64), (False, True)):
        tiles = []
        for n_rows in (8, 512, 4096, 2**20):
            known = {"backward": backward, "n_rows": n_rows}
            tiles.append(("time_contiguous", tuning.time_contiguous(T, dtype.itemsize, **known)))
            for n in (1, 1 + T // 1000, 1 + T // 32):
                packed = tuning.time_contiguous(T, dtype.itemsize, **known, packed=True, n_sequences=n)
                tiles.append(("time_contiguous", packed))
            for C in (1, 16, 64, 1536, 1537):
                tiles.append(("channels_last", tuning.channels_last(T, C, dtype.itemsize, **known)))
        for layout, tile in tiles:
            # The interpreter knows no warps and no registers, and of stages whether channels are loaded ahead.
            ahead = layout == "channels_last" and tile.stages == 2
            shown = (*tile[:3], *(["ahead"] if ahead else []), tile.window) if INTERPRETING else tile
            found["-".join([layout, NAMES[dtype], *map(str, shown)])] = (layout, dtype, tile)
    return found


CONFIGURATIONS = _configurations()


@pytest.mark.parametrize(("layout", "dtype", "tile"), CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_every_configuration_alone(
    layout: str, dtype: torch.dtype, tile: tuning.Tile, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, layout, lambda *_, **__: tile)
    monkeypatch.setattr(launch, "_plans", {})  # launches are kept by shape, as a process has one tuning
    steps, dim = tile.groups * tile.width, -1 if layout == "time_contiguous" else -2
    # One tile filled; two of which some rows end well before the border and others, which begin later in a line of
    # memory, behind it; and two with the second one hardly begun, in one of them an end of a sequence on the border.
    for T, reverse, lengths in (
        (steps, False, None),
        (2 * steps - 9, False, None),
        (2 * steps - 9, True, None),
        # Whole groups, whose rows begin anywhere in a line of memory.
        (steps + 3 * tile.width, False, None),
        (steps + 3 * tile.width, True, (steps - 1, 0, 1, 2)),
        (steps + 3, True, None),
        (steps + 3, False, (steps - 1, 0, 1, 2)),
    ):
        case = Case(T, dtype, rows=(2,), dim=dim, reverse=reverse, lengths=lengths, initial=True)
        inputs = draw(case, kernel_device)
        assert_within(run_implementation(launch, case, inputs), expected(case, inputs))


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    """A case that no one thought of."""
    T = draw(st.integers(1, 140))
    lengths = None
    if draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, T), max_size=8)))
        lengths = tuple(b - a for a, b in itertools.pairwise([0, *cuts]))
    layouts = st.sampled_from(("dense", "swapped", "expanded", "spread", "gaps", "strided", "offset", "odd", "scalar"))
    return Case(
        T,
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from((None, *DTYPES))),
        draw(st.sampled_from([(1,), (3,), (2, 2), (1, 5)])),
        draw(st.sampled_from((-1, -2))),
        *(draw(st.booleans()),),
        lengths,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(layouts),
        draw(layouts),
        draw(layouts),
        draw(st.sampled_from(("both", "states", "final"))),
    )


@hypothesis.given(case=any_case())
@hypothesis.settings(max_examples=40)
def test_any_case(case: Case, device: torch.device) -> None:
    hypothesis.assume(not INTERPRETING or interpretable(case.dtype, case.gates_dtype))
    check(case, device)
