"""What the compiler makes of both directions: in one tile each tensor moved once; of long rows one code and buffers."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch

from scan import launch, launch_shared, tuning
from tests.scan.cases import NAMES
from tests.scan.compiled import Code, code_of

triton = pytest.importorskip("triton", reason="compiles Triton's kernels")
pytestmark = pytest.mark.codegen

OLD = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7)
# What is read and written of tensors as long as the rows.
FORMS = {"each": (2, 2), "sum": (2, 1), "sum and each": (2, 3), "backward": (5, 2), "backward of a sum": (4, 2)}
# The longest rows of one tile forward, and the longest that begin or end within a group: of 512 groups.
LONGEST = {torch.float32: 8192, torch.bfloat16: 8192}
LONGEST_CUT = {torch.float32: 2048, torch.bfloat16: 4096}
# Registers of a thread, backward by the steps of a row that it holds, and of rows that end within a group: with 128
# four programs of four warps fit on a multiprocessor, with 168 three, with more two. No thread can have more than 255.
REGISTERS, REGISTERS_BACKWARD, REGISTERS_CUT = 128, {4: 128, 8: 128, 16: 168, 32: 255}, 168
# Bytes that may be spilled where tuning holds a thread to fewer registers than ptxas would take, by dtype and the
# longest row of the tile.
SPILLED_CAPPED = {
    (torch.float32, 2048): 8, (torch.float32, 4096): 48, (torch.float32, 8192): 80,
    (torch.bfloat16, 128): 8 if OLD else 0, (torch.bfloat16, 4096): 40, (torch.bfloat16, 8192): 16,
}  # fmt: skip
# The same of rows that programs share, forward and backward, and more elsewhere.
SPILLED_LONG = {torch.float32: (24 if OLD else 16, 8), torch.bfloat16: (104, 80 if OLD else 56)}
SPILLED_LONG_ELSEWHERE = 40
# More on other targets than that of the tables, and of rows that end within a group: an address.
SPILLED_ELSEWHERE = 8


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
        tile = tuning.shared(self.T, self.dtype.itemsize, backward=self.backward, even=self.even)
        assert tile is not None
        return tile

    @property
    def whole(self) -> bool:
        return self.T == self.tile.steps

    @property
    def pairs(self) -> int:
        return self.tile.rows * self.tile.groups // (32 * self.tile.num_warps)

    def registers(self, target: str) -> int:
        """How many a thread may take."""
        if not self.even:
            return REGISTERS_CUT
        if not self.backward:
            return self.tile.registers or REGISTERS
        if self.tile.registers is not None:
            return self.tile.registers
        steps = self.pairs * self.tile.width
        if steps == 32 and self.dtype == torch.bfloat16 and self.whole and target == "sm_90":
            steps = 16  # three programs fit still
        return REGISTERS_BACKWARD[steps]

    def spilled(self, target: str) -> int:
        """Bytes that may be spilled."""
        longest = self.dtype, self.tile.groups * self.tile.width
        spilled = 0 if target == "sm_90" and self.even else SPILLED_ELSEWHERE
        if self.tile.window:
            return SPILLED_LONG[self.dtype][self.backward] + (0 if target == "sm_90" else SPILLED_LONG_ELSEWHERE)
        if self.tile.registers is not None:
            return spilled + SPILLED_CAPPED[longest]
        return spilled

    @property
    def shuffles(self) -> int:
        """As of two scans, and of the way to the groups in reverse and back.

        In one warp that is one shuffle for each of two values and one for what comes out; else five for each of four
        values there and back, of which `ptxas` leaves half. Each final state is a sum. The rows of a program agree on
        how far one can read.
        """
        rounds = min(32, self.tile.groups).bit_length() - 1
        mirror = 3 if self.tile.num_warps == 1 else 40
        sums = 2 * (rounds + self.tile.num_warps.bit_length() - 1) * self.tile.rows if self.final else 0
        ends = 0 if self.even else 4 * (self.tile.rows - 1) * 3
        return self.pairs * (2 * (4 * rounds + 8) + mirror) + sums + ends + self.exchange

    @property
    def exchange(self) -> int:
        """Where programs share a row: three sums, and two scans of the maps of all with a sum each."""
        if self.tile.window == 0:
            return 0
        held = max(1, -(-self.T // self.tile.steps) // 32)
        return 3 * 8 + 2 * (held * 2 * 7 + 8)


# Rows that fill a tile. Of the forms that hold all of the others, also rows that end within a group, and rows that fill
# three quarters of a tile of which a thread holds most: fewer do not take the largest.
LARGE = ("sum and each", "backward")
KERNELS = [
    Kernel(form, T, dtype)
    for form, dtype, power, step in itertools.product(FORMS, LONGEST, range(7, 14), (0, 9))
    if (T := 2**power - step) <= (LONGEST if step == 0 else LONGEST_CUT)[dtype] and (step == 0 or form in LARGE)
]
KERNELS += [Kernel(form, T, dtype) for form, dtype, T in itertools.product(LARGE, LONGEST, (3072, 6144))]
# Rows that programs share: tiles that are whole, and not, and as many as there may be.
KERNELS += [Kernel(form, 16_384, dtype) for form, dtype in itertools.product(FORMS, LONGEST)]
KERNELS += [Kernel(form, T, dtype) for form, dtype, T in itertools.product(LARGE, LONGEST, (5000, 131_072))]
SOME = [k for k in KERNELS if k.T in (256, 8192, 16_384) and k.form in LARGE]


def _check(target: str, kernel: Kernel) -> Code:
    code, tile = kernel.code(target), kernel.tile
    reads, writes = FORMS[kernel.form]
    assert code.name == ("backward_shared" if kernel.backward else "forward_shared") and code.warps == tile.num_warps
    assert code.spilled <= kernel.spilled(target) and code.registers <= kernel.registers(target)
    # Triton before 3.7 scans tiles of several rows once more, in the layout of each of two results.
    again = 2.5 if OLD and tile.rows > 1 else 1
    assert code.scans <= (4 if tile.window else 2) * again and code.shuffles <= kernel.shuffles * again
    assert code.wide_loads == reads * kernel.pairs and code.wide_stores == writes * kernel.pairs
    if kernel.even:
        # Beside whole groups a final state of each direction, or a state of either for each group, asked for as one of
        # the V elements of a vector that may not be there.
        V = tile.width
        assert code.loads == code.wide_loads + (2 * V * kernel.pairs if kernel.backward else 0)
        assert code.stores == code.wide_stores + (2 if kernel.final else 0)
    # Two scans, and two sums, each a meeting before and one after; a mirror of one warp meets nobody. Where programs
    # share a row they are told the ticket, and the scans and sums of the exchange meet too.
    barriers = 0 if tile.num_warps == 1 else 10 if kernel.final else 4
    if tile.window:
        barriers = 1 if tile.num_warps == 1 else barriers + 24
    assert code.barriers <= barriers
    return code


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_each_tensor_is_moved_once(kernel: Kernel) -> None:
    _check("sm_90", kernel)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if not k.backward and k.whole], ids=str)
def test_with_final_states(kernel: Kernel) -> None:
    _check("sm_90", kernel._replace(final=True))


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
        for backward, dtype, even in itertools.product((False, True), LONGEST, (False, True))
        for T in range(1, LONGEST[dtype] + 9)
        if (tile := tuning.shared(T, dtype.itemsize, backward=backward, even=even)) is not None
    }
    assert chosen == compiled


@pytest.mark.parametrize("dtype", LONGEST, ids=NAMES.get)
@pytest.mark.parametrize(("T", "C"), [(10_000, 192), (16_384, 192), (65_536, 192), (65_536, 352)])
def test_long_rows_take_the_buffers_of_one_direction(T: int, C: int, dtype: torch.dtype) -> None:
    x = torch.empty(2, C, T, dtype=dtype)
    calls = [lambda r=r: launch.forward(x, x, None, None, -1, r, False, False) for r in (False, True)]
    calls.append(lambda: launch.forward_both((x, x, None), (x, x, None), None, -1, False, False))
    ahead, back, either = (code_of("sm_90", call)[-1] for call in calls)
    assert either.name == "forward_either"
    for what in ("wide_loads", "wide_stores", "loads", "stores", "shuffles", "barriers", "scans", "shared"):
        assert getattr(either, what) == getattr(back, what) == getattr(ahead, what), what
    assert either.spilled <= 8 and either.registers <= max(ahead.registers, back.registers) + 8
