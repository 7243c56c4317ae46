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
    def pairs(self) -> int:
        return self.tile.rows * self.tile.groups // (32 * self.tile.num_warps)

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
        return self.pairs * (2 * (4 * rounds + 8) + mirror) + sums + ends


LONGEST = {torch.float32: 2048, torch.bfloat16: 4096}
# Rows that end within a group too, of the forms that hold all of the others.
KERNELS = [
    Kernel(form, T, dtype)
    for form, dtype, power, step in itertools.product(FORMS, LONGEST, range(7, 13), (0, 9))
    if (T := 2**power - step) <= LONGEST[dtype] and (step == 0 or form in ("sum and each", "backward"))
]
SOME = [k for k in KERNELS if k.T in (256, 1024) and k.form in ("sum and each", "backward")]


def _check(target: str, kernel: Kernel) -> Code:
    code, tile = kernel.code(target), kernel.tile
    reads, writes = FORMS[kernel.form]
    assert code.name == ("backward_shared" if kernel.backward else "forward_shared") and code.warps == tile.num_warps
    # Of rows that end within a group, an address may find no register.
    assert code.spilled <= (0 if target == "sm_90" and kernel.even else 8)
    assert code.registers <= 128 or (not kernel.even and code.registers <= 168)
    # Triton before 3.7 scans two rows of 16 groups once more, in the layout of each of two results.
    again = 2.5 if OLD and tile.rows > 1 else 1
    assert code.scans <= 2 * again and code.shuffles <= kernel.shuffles * again
    assert code.wide_loads == reads * kernel.pairs and code.wide_stores == writes * kernel.pairs
    if kernel.even:
        # Beside whole groups a final state of each direction, or a state of either for each group, asked for as one of
        # the V elements of a vector that may not be there.
        V = tile.width
        assert code.loads == code.wide_loads + (2 * V * kernel.pairs if kernel.backward else 0)
        assert code.stores == code.wide_stores + (2 if kernel.final else 0)
    # Two scans, and two sums, each a meeting before and one after; a mirror of one warp meets nobody.
    assert code.barriers <= (0 if tile.num_warps == 1 else 10 if kernel.final else 4)
    return code


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_each_tensor_is_moved_once(kernel: Kernel) -> None:
    _check("sm_90", kernel)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if not k.backward and k.T % 128 == 0], ids=str)
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
    compiled = {(k.backward, k.dtype, k.tile) for k in KERNELS}
    chosen = {
        (backward, dtype, tile)
        for backward, dtype, T in itertools.product((False, True), LONGEST, range(1, 4097))
        if (tile := tuning.shared(T, dtype.itemsize, backward=backward, even=True)) is not None
    }
    assert chosen == compiled


@pytest.mark.parametrize("dtype", LONGEST, ids=NAMES.get)
@pytest.mark.parametrize("T", [10_000, 16_384, 65_536])
def test_long_rows_take_the_buffers_of_one_direction(T: int, dtype: torch.dtype) -> None:
    x = torch.empty(2, 192, T, dtype=dtype)
    calls = [lambda r=r: launch.forward(x, x, None, None, -1, r, False, False) for r in (False, True)]
    calls.append(lambda: launch.forward_both((x, x, None), (x, x, None), None, -1, False, False))
    ahead, back, either = (code_of("sm_90", call)[-1] for call in calls)
    assert either.name == "forward_either"
    for what in ("wide_loads", "wide_stores", "loads", "stores", "shuffles", "barriers", "scans", "shared"):
        assert getattr(either, what) == getattr(back, what) == getattr(ahead, what), what
    assert either.spilled <= 8 and either.registers <= max(ahead.registers, back.registers) + 8
