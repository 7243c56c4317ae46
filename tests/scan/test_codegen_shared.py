"""What the compiler makes of both directions: in one tile each tensor moved once; of long rows one code and buffers."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch

from scan import launch, launch_shared, tuning
from tests.scan.cases import NAMES
from tests.scan.compiled import SHARED, Code, code_of

triton = pytest.importorskip("triton", reason="compiles Triton's kernels")
pytestmark = pytest.mark.codegen

OLD = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7)
# What is read and written of tensors as long as the rows.
FORMS = {"each": (2, 2), "sum": (2, 1), "sum and each": (2, 3), "backward": (5, 2), "backward of a sum": (4, 2)}
DTYPES = (torch.float32, torch.bfloat16)
# The longest rows of one tile, by dtype and whether backward; the longest that begin or end within a group, of 512
# groups; and the longest that programs share.
LONGEST = {
    (torch.float32, False): 8192, (torch.float32, True): 4096,
    (torch.bfloat16, False): 8192, (torch.bfloat16, True): 4096,
}  # fmt: skip
LONGEST_CUT = {torch.float32: 2048, torch.bfloat16: 4096}
LONGEST_SHARED = 131_072
# Registers of a thread, of rows that end within a group, and of 32 steps a thread backward: with 128 four programs of
# four warps fit on a multiprocessor, with 168 three. No thread can have more than 255.
REGISTERS, REGISTERS_CUT, REGISTERS_MOST = 128, 168, 255
# Bytes that may be spilled where a thread may not have the registers that ptxas would take: by dtype and whether
# backward, where tuning holds it to fewer; and of rows that end within a group, where threads hold two.
SPILLED_CAPPED = {
    (torch.float32, False): 0, (torch.float32, True): 0, (torch.bfloat16, False): 8, (torch.bfloat16, True): 0,
}  # fmt: skip
SPILLED_CUT = {torch.float32: 0, torch.bfloat16: 16}
# The same of rows that programs share: of those of 32 programs at most, whose maps are one a thread, on the target of
# the tables and elsewhere; and of more. Triton before 3.7 spills some words more.
SPILLED_LONG = {
    (torch.float32, False): (32, 40, 64), (torch.float32, True): (0, 0, 48),
    (torch.bfloat16, False): (32, 32, 80), (torch.bfloat16, True): (16, 16, 96),
} if OLD else {
    (torch.float32, False): (32, 32, 40), (torch.float32, True): (0, 0, 40),
    (torch.bfloat16, False): (24, 32, 48), (torch.bfloat16, True): (16, 32, 48),
}  # fmt: skip


class Kernel(NamedTuple):
    """One launch of 2 * 192 rows."""

    form: str
    T: int
    dtype: torch.dtype
    final: bool = False

    def __str__(self) -> str:
        return f"{self.form}-{NAMES[self.dtype]}-T{self.T}" + ("-final" if self.final else "")

    def launch(self) -> None:
        x = torch.empty(2, 192, self.T, dtype=self.dtype)
        if self.backward:
            d_reverse = None if "sum" in self.form else x
            assert launch_shared.backward(x, x, x, x, d_reverse, self.dtype, False, (True, True)) is not None
        else:
            launch_shared.forward(x, x, False, self.final, "sum" in self.form, "each" in self.form)

    def code(self, target: str) -> Code:
        return code_of(target, self.launch)[-1]

    @property
    def backward(self) -> bool:
        return self.form.startswith("backward")

    @property
    def even(self) -> bool:
        return self.T * self.dtype.itemsize % 16 == 0

    @property
    def tile(self) -> tuning.Tile:
        added = self.form in ("sum", "backward of a sum")
        tile = tuning.shared(self.T, self.dtype.itemsize, backward=self.backward, even=self.even, added=added)
        assert tile is not None
        return tile

    @property
    def whole(self) -> bool:
        return self.T == self.tile.steps

    @property
    def pairs(self) -> int:
        return self.tile.rows * self.tile.groups // (32 * self.tile.num_warps)

    @property
    def held(self) -> int:
        """Of how many programs of the row a thread holds the map."""
        return max(1, -(-self.T // self.tile.steps) // (32 * self.tile.num_warps)) if self.tile.window else 0

    @property
    def registers(self) -> int:
        """How many a thread may take."""
        if not self.even:
            return REGISTERS_CUT
        if self.backward and self.pairs * self.tile.width > 16:
            return self.tile.registers or REGISTERS_MOST
        return self.tile.registers or REGISTERS

    def spilled(self, target: str) -> int:
        """Bytes that may be spilled."""
        kind = self.dtype, self.backward
        if self.tile.window:
            here, elsewhere, many = SPILLED_LONG[kind]
            return many if self.held > 1 else here if target == "sm_90" else elsewhere
        if self.tile.registers is not None:
            return SPILLED_CAPPED[kind]
        return 0 if self.even else SPILLED_CUT[self.dtype]

    @property
    def strips(self) -> int:
        """How many groups of a row a thread holds."""
        return max(1, self.tile.groups // (32 * self.tile.num_warps))

    @property
    def shuffles(self) -> int:
        """Of each row of which a thread holds part, in either direction.

        Strips and lanes trade places by shuffles of half the strips for each bit of their number: a map's two values,
        and the state that comes back. Maps of lanes come into scan order, if they are not, by two. Two values a round
        are composed across lanes, and of the lane before the state is asked for; where a thread holds parts of several
        rows, Triton brings either value across. Of several warps two more bring the map of each to all lanes; then
        Triton brings each of four values across, and for the way back reverses all of them by five shuffles each, there
        and back.

        Each final state is a sum for each row that a thread holds part of, brought to the thread that stores it. The
        rows of a program agree on how far one can read: 64 bits of either input, and of the states.
        """
        tile, rounds, bits = self.tile, _log2(min(32, self.tile.groups)), _log2(self.strips)
        traded = 3 * bits * self.strips // 2
        whole = 2 if tile.num_warps > 1 or tile.window else 0
        ways = 2 * (traded + 2 * rounds + whole + 1 + (2 if self.pairs > self.strips else 0)) + (4 if bits else 2)
        across = 2 * 4 + 2 * 4 * 5 if tile.num_warps > 1 else 0
        sums = 2 * (min(tile.rows, self.pairs) * (rounds + _log2(tile.num_warps)) + _log2(tile.rows))
        ends = (3 if self.backward else 2) * 2 * _log2(tile.rows)
        shuffles = self.pairs // self.strips * (ways + across) + (sums if self.final else 0)
        return shuffles + (0 if self.even else ends) + self.exchange

    @property
    def exchange(self) -> int:
        """Where programs share a row: of the maps of all of them in either direction, each strip of them for itself.

        All lanes hold the map of the tile, so that it takes no sums, and of all programs the state after the last one,
        a shuffle where they are one strip. Of several warps the maps of strips are brought across as those of groups;
        then the tile's maps and two states that come in, in four and two numbers, and whether all maps are there, in
        two, are totals of warps.
        """
        if self.tile.window == 0:
            return 0
        strip = 2 * 5 + (2 if self.held > 1 else 0) + (2 if self.parts > 1 else 1)
        across = 4 if self.tile.num_warps > 1 else 0
        return 2 * self.held * (strip + across) + (4 + 2 + 2) * _log2(self.tile.num_warps)

    @property
    def parts(self) -> int:
        """How many strips the maps of all programs of a row are."""
        return self.held * self.tile.num_warps

    @property
    def scans(self) -> int:
        """In either direction within lanes where they hold several maps, over them and over warps; then of programs."""
        of_groups = 1 + (self.strips > 1) + (self.tile.num_warps > 1)
        return 2 * (of_groups + (1 + (self.parts > 1) if self.tile.window else 0))

    @property
    def barriers(self) -> int:
        """Two scans over strips of several warps, each a meeting after writing, and one between them.

        A final state is a sum, that meets there too and once more before it is stored. One warp meets nobody. Where
        several share a row with other programs, the same of the eight totals and two scans of the exchange.
        """
        if self.tile.num_warps == 1:
            return 0
        return 2 + 1 + (2 * 3 if self.final else 0) + (8 * 3 + 2 * 2 if self.tile.window else 0)


def _log2(n: int) -> int:
    return n.bit_length() - 1


# Rows that fill a tile. Of the forms that hold all of the others, also rows that end within a group, and rows that fill
# three quarters of a tile of which a thread holds most: fewer do not take the largest.
LARGE = ("sum and each", "backward")
KERNELS = [
    Kernel(form, T, dtype)
    for form, dtype, power, step in itertools.product(FORMS, DTYPES, range(7, 14), (0, 9))
    if (T := 2**power - step) <= (LONGEST_CUT[dtype] if step else LONGEST[dtype, form.startswith("backward")])
    and (step == 0 or form in LARGE)
]
KERNELS += [Kernel(form, T, dtype) for form, dtype, T in itertools.product(LARGE, DTYPES, (3072, 6144))]
# Rows that programs share: tiles that are whole, and not, and as many as there may be.
KERNELS += [Kernel(form, 16_384, dtype) for form, dtype in itertools.product(FORMS, DTYPES)]
KERNELS += [Kernel(form, T, dtype) for form, dtype, T in itertools.product(LARGE, DTYPES, (5000, LONGEST_SHARED))]
KERNELS.append(Kernel("backward of a sum", LONGEST_SHARED, torch.float32))
SOME = [k for k in KERNELS if k.T in (256, 8192, 16_384) and k.form in LARGE]


def _check(target: str, kernel: Kernel) -> Code:
    code, tile = kernel.code(target), kernel.tile
    reads, writes = FORMS[kernel.form]
    assert code.name == ("backward_shared" if kernel.backward else "forward_shared") and code.warps == tile.num_warps
    assert code.spilled <= kernel.spilled(target) and code.registers <= kernel.registers
    shuffles = kernel.shuffles
    if OLD and tile.rows > 1:
        # Triton before 3.7 scans groups of several rows in another layout than that of memory: every step of a tensor
        # is brought there or back by a shuffle, and of groups that the row cuts both parts.
        shuffles += (reads + writes + 2 * kernel.backward) * kernel.pairs * tile.width * (1 if kernel.even else 2)
    assert code.scans <= kernel.scans and code.shuffles <= shuffles
    assert code.wide_loads == reads * kernel.pairs and code.wide_stores == writes * kernel.pairs
    if kernel.even:
        # Beside whole groups a final state of each direction, or a state of either for each group, asked for as one of
        # the V elements of a vector that may not be there.
        V = tile.width
        assert code.loads == code.wide_loads + (2 * V * kernel.pairs if kernel.backward else 0)
        assert code.stores == code.wide_stores + (2 if kernel.final else 0)
    assert code.barriers <= kernel.barriers
    return code


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_each_tensor_is_moved_once(kernel: Kernel) -> None:
    _check("sm_90", kernel)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if not k.backward and k.whole], ids=str)
def test_with_final_states(kernel: Kernel) -> None:
    _check("sm_90", kernel._replace(final=True))


@pytest.mark.parametrize("form", LARGE)
def test_what_is_held_as_it_was_loaded_takes_fewer_registers(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(form, 65_536, torch.bfloat16)
    # Its tile with as many registers as ptxas likes.
    tile = kernel.tile._replace(registers=None)
    monkeypatch.setattr(tuning, "shared", lambda *_, **__: tile)
    held, converted = (_held_from(steps, kernel, monkeypatch) for steps in (launch_shared._HELD_FROM, tile.steps))
    assert held.registers < converted.registers and held.spilled == 0
    for what in ("wide_loads", "wide_stores", "loads", "stores", "shuffles", "scans"):
        assert getattr(held, what) == getattr(converted, what), what


def _held_from(steps: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Code:
    """The code of a kernel where numbers of 16 bits are held from so many steps a thread on."""
    monkeypatch.setattr(launch_shared, "_HELD_FROM", steps)
    return kernel.code("sm_90")


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100"])
@pytest.mark.parametrize("kernel", SOME, ids=str)
def test_elsewhere(target: str, kernel: Kernel) -> None:
    _check(target, kernel)


@pytest.mark.parametrize("kernel", SOME, ids=str)
def test_amd(kernel: Kernel) -> None:
    code = kernel.code("gfx942")
    assert code.spilled == 0 and code.doubles == 0


def test_every_configuration_is_compiled() -> None:
    compiled = {(k.backward, k.dtype, k.even, k.tile) for k in KERNELS}
    chosen = {
        (backward, dtype, even, tile)
        for backward, dtype, even, added in itertools.product((False, True), DTYPES, (False, True), (False, True))
        for T in range(1, LONGEST_SHARED + 9)
        if (tile := tuning.shared(T, dtype.itemsize, backward=backward, even=even, added=added)) is not None
    }
    assert chosen == compiled


@pytest.mark.parametrize(
    ("T", "dtype"),
    [
        (8192, torch.float32),
        *itertools.product((10_000, 65_528), DTYPES),
        (16_384, torch.bfloat16),
        (65_536, torch.bfloat16),
    ],
)
def test_long_rows_take_the_buffers_of_one_direction(T: int, dtype: torch.dtype) -> None:
    x = torch.empty(2, 192, T, dtype=dtype)
    calls = [lambda r=r: launch.forward(x, x, None, None, -1, r, False, False) for r in (False, True)]
    calls.append(lambda: launch.forward_both((x, x, None), (x, x, None), None, -1, False, False))
    ahead, back, either = (code_of("sm_90", call)[-1] for call in calls)
    assert either.name == "forward_either"
    for what in ("wide_loads", "wide_stores", "loads", "stores", "shuffles", "barriers", "scans", "shared"):
        assert getattr(either, what) == getattr(back, what) == getattr(ahead, what), what
    assert either.spilled == 0
    # A few registers more, or as many programs on a multiprocessor still, where shared memory has room for no more.
    few = either.registers <= max(ahead.registers, back.registers) + 8
    assert few or _programs(either) == _programs(back) == _programs(ahead) == SHARED["sm_90"] // (either.shared + 1024)


@pytest.mark.parametrize(("T", "kernel"), [(16_384, "forward"), (65_536, "forward"), (8192, "backward")])
def test_rows_in_runs_are_a_launch_for_each_direction(T: int, kernel: str) -> None:
    x = torch.empty(2, 192, T)
    saved, needs = (x, x, None, x, None), (True, True, False)

    def forward() -> None:
        launch.forward_both((x, x, None), (x, x, None), None, -1, False, False)

    def backward() -> None:
        launch.backward_both(saved, saved, None, x.dtype, -1, False, (needs, needs))

    codes = code_of("sm_90", forward if kernel == "forward" else backward)
    assert [code.name for code in codes] == [kernel, kernel]


def _programs(code: Code) -> int:
    """How many programs a multiprocessor has room for: 65536 registers, and shared memory, of which each takes 1 KiB.

    Threads have registers in steps of 8 (CUDA C++ Programming Guide 13.0, "Hardware Multithreading").
    """
    registers = 32 * code.warps * 8 * -(-code.registers // 8)
    return min(65_536 // registers, SHARED["sm_90"] // (code.shared + 1024))
