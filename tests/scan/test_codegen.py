"""What the compiler makes of the kernels, for GPUs that need not be there: wide accesses, few shuffles, no spills.

Each kernel is compiled through `scan.launch`, with the configurations, constants and alignments of a real launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from scan import launch, tuning
from tests.scan.cases import NAMES
from tests.scan.compiled import TARGETS, Code, code_of

triton = pytest.importorskip("triton", reason="compiles Triton's kernels")
pytestmark = pytest.mark.codegen

# A scan of pairs (gate, state) that also yields the prefix before each pair combines 4 values; within a warp of 32 it
# takes 5 rounds, so 20 shuffles for each pair that a thread holds. Another 8 bring what lies across warps, or across
# the pairs of a thread. The state after a tile comes out of one sum over a warp: 5 rounds, and 3 to spread it.
SHUFFLES_A_PAIR, SHUFFLES_A_TILE = 28, 8
# The parts of a scan in different warps meet twice in shared memory, the carry once more, and a pipeline of loads waits
# before and after each tile; each meeting is one barrier to write and one to read. Where final states of sequences are
# stored, each of up to 8 columns may change its layout on the way, with two more.
BARRIERS, BARRIERS_FINAL = 12, 28
# 16 warps fit on a multiprocessor of 65,536 registers; packed tiles and tiles of channels trade warps for work.
REGISTERS, REGISTERS_MOST = 128, 255
LANES = {target: lanes for target, (_, _, lanes) in TARGETS.items()}
# Where the tables were not measured, a few registers may be spilled: in bytes, and on AMD in registers, of which its
# pipelined loops keep most in memory before Triton 3.7.
SPILLED = {"sm_100": 16, "gfx942": 32 if triton.__version__ >= "3.7" else 2048}


class Kernel(NamedTuple):
    """One launch: `[4, 2, T]` or, with `dim=-2`, `[4, T, 64]`."""

    name: str
    T: int
    dtype: torch.dtype
    dim: int = -1
    packed: bool = False
    reverse: bool = False
    final: bool = False

    def __str__(self) -> str:
        words = [self.name, NAMES[self.dtype], f"T{self.T}", "last" if self.dim == -2 else "first"]
        return "-".join(words + [word for word in ("packed", "reverse", "final") if getattr(self, word)])

    def launch(self) -> None:
        x = torch.zeros((4, 2, self.T) if self.dim == -1 else (4, self.T, 64), dtype=self.dtype)
        cu_seqlens = torch.tensor([0, self.T // 2, self.T], dtype=torch.int32) if self.packed else None
        if self.name == "forward":
            launch.forward(x, x, None, cu_seqlens, self.dim, self.reverse, False, self.final)
        else:
            needs = (True, True, False)
            launch.backward(x, x, None, cu_seqlens, x, None, self.dtype, self.dim, self.reverse, False, needs)

    def code(self, target: str) -> Code:
        return code_of(target, self.launch)[-1]

    @property
    def tile(self) -> tuning.Tile:
        direction = {"backward": self.name == "backward"}
        if self.dim == -2:
            return tuning.channels_last(self.T, 64, self.dtype.itemsize, **direction)
        return tuning.time_contiguous(self.T, self.dtype.itemsize, packed=self.packed, **direction)

    def pairs(self, target: str) -> int:
        """Groups that a thread holds, and so pairs of the scan."""
        return max(1, self.tile.rows * self.tile.groups // (LANES[target] * self.tile.num_warps))


KERNELS, DTYPES = ("forward", "backward"), (torch.float32, torch.bfloat16)


def _kernels(T: tuple[int, ...], **fixed: bool) -> list[Kernel]:
    return [Kernel(*axes, **fixed) for axes in itertools.product(KERNELS, T, DTYPES)]


def _everywhere(kernels: list[Kernel], targets: tuple[str, ...] = tuple(TARGETS)) -> Callable[..., None]:
    every = [pytest.param(t, k, id=f"{t}-{k}") for t in targets for k in kernels]
    return pytest.mark.parametrize(("target", "kernel"), every)


# Every configuration on one target, some on all.
ONE = _kernels((128, 127, 255, 256, 511, 512, 1023, 1024, 2047, 2048, 8191, 8192, 65_536))
FEW = _kernels((4097, 65_536))
PACKED = _kernels((512, 4096), packed=True)


LAST = [k._replace(dim=-2, packed=packed) for k in _kernels((512,)) for packed in (False, True)]


def _check(target: str, kernel: Kernel) -> Code:
    """What holds for every kernel."""
    code, tile, pairs = kernel.code(target), kernel.tile, kernel.pairs(target)
    assert code.name == kernel.name and code.warps == tile.num_warps
    assert code.spilled <= SPILLED.get(target, 0)
    assert code.doubles == 0, "arithmetic is in float32"
    if code.amd:
        # The tables count on warps of 32 lanes; on 64 a tile is spread thinner, and budgets would mean little.
        return code
    small = kernel.dim == -1 and not kernel.packed
    assert code.registers <= (REGISTERS if small else REGISTERS_MOST)
    assert code.shuffles <= SHUFFLES_A_PAIR * pairs + SHUFFLES_A_TILE
    alone = code.warps == 1 and tile.stages == 1
    assert code.barriers <= (0 if alone else BARRIERS_FINAL if kernel.final and kernel.packed else BARRIERS)
    return code


@_everywhere(ONE + PACKED, ("sm_90",))
def test_time_contiguous(target: str, kernel: Kernel) -> None:
    code, pairs = _check(target, kernel), kernel.pairs(target)
    inputs, outputs = (2, 1) if kernel.name == "forward" else (3, 2)
    # Whole groups of every tensor move 16 bytes at a time.
    assert code.wide_loads >= inputs * pairs and code.wide_stores >= outputs * pairs
    if kernel.T % kernel.tile.width == 0 and not kernel.packed and kernel.tile.stages == 1:
        # Even rows have no element that moves alone, but for the one before each group that backward needs.
        before = pairs if kernel.name == "backward" else 0
        assert code.loads == code.wide_loads + before and code.stores == code.wide_stores


@_everywhere(FEW + PACKED[1::2], tuple(t for t in TARGETS if t != "sm_90"))
def test_time_contiguous_elsewhere(target: str, kernel: Kernel) -> None:
    code, pairs = _check(target, kernel), kernel.pairs(target)
    inputs, outputs = (2, 1) if kernel.name == "forward" else (3, 2)
    assert code.wide_stores >= outputs * pairs
    assert code.wide_loads >= (1 if code.amd else inputs * pairs)


@_everywhere(LAST)
def test_channels_last(target: str, kernel: Kernel) -> None:
    code = _check(target, kernel)
    inputs, outputs = (2, 1) if kernel.name == "forward" else (3, 2)
    # Each step of a group is one vector of channels.
    assert code.wide_loads >= inputs * kernel.tile.width and code.wide_stores >= outputs * kernel.tile.width


@pytest.mark.parametrize("kernel", [k for k in FEW + PACKED + LAST if k.T < 65_536], ids=str)
def test_descending_shuffles_no_more_than_ascending(kernel: Kernel) -> None:
    ahead, back = kernel.code("sm_90"), kernel._replace(reverse=True).code("sm_90")
    assert back.shuffles == ahead.shuffles and back.barriers == ahead.barriers
    assert (back.wide_loads, back.wide_stores) == (ahead.wide_loads, ahead.wide_stores)


@pytest.mark.parametrize("kernel", [k for k in ONE[::2] + PACKED + LAST if k.name == "forward"], ids=str)
def test_with_final_states(kernel: Kernel) -> None:
    _check("sm_90", kernel._replace(final=True))


def test_a_spill_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 rows of 128 groups in one warp: 64 pairs a thread cannot all stay in registers.
    monkeypatch.setattr(tuning, "time_contiguous", lambda *_, **__: tuning.Tile(16, 128, 4, 1))
    assert Kernel("backward", 512, torch.float32).code("sm_90").spilled > 0


def test_narrow_access_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "time_contiguous", lambda *_, **__: tuning.Tile(1, 128, 2, 4))
    code = Kernel("forward", 512, torch.float32).code("sm_90")
    assert code.wide_loads == code.wide_stores == 0 and code.loads > 0 and code.stores > 0


def test_table_of_a_packed_batch() -> None:
    table, scan = code_of("sm_90", Kernel("forward", 512, torch.float32, packed=True).launch)
    assert (table.name, scan.name) == ("mark_sequences", "forward")
    assert table.spilled == 0
