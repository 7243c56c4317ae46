"""What the compiler makes of the kernels, for GPUs that need not be there: wide accesses, few shuffles, no spills.

Each kernel is compiled through `scan.launch`, with the configurations, constants and alignments of a real launch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch

from scan import launch, tuning
from tests.scan.cases import NAMES
from tests.scan.compiled import SAME_PTX, TARGETS, Code, code_of, half
from tests.scan.compiled import SHARED as SHARED_BYTES

triton = pytest.importorskip("triton", reason="compiles Triton's kernels")
pytestmark = pytest.mark.codegen

LANES = {target: lanes for target, (_, _, lanes) in TARGETS.items()}
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
OLD = VERSION < (3, 7)

# 16 warps fit on a multiprocessor of 65,536 registers with 128 each, 12 with 168; tiles of channels trade warps for
# work.
REGISTERS, REGISTERS_PACKED, REGISTERS_LAST = 128, 168, 255
# Bytes that may be spilled on other targets than that of the tables, by a ptxas that came later, and where programs
# share rows or channels: one address, stored and loaded once, where ptxas gives a register for another warp.
SPILLED_ELSEWHERE = 8
# The same, on the target of the tables and on others, where programs share rows and tuning holds a thread to fewer
# registers than ptxas would take.
SPILLED_SPLIT, SPILLED_SPLIT_ELSEWHERE = (32, 32) if OLD else (16, 16)
# The same of resets and final states of 64 steps a thread.
SPILLED_RESETS = 256
# A warp of AMD has 64 lanes. Before Triton 3.7 a pipelined tile of fewer groups than lanes is kept in memory there.
SPILLED_THIN = 8192
# Tiles of one row that before Triton 3.7 may be scanned twice, once in the layout of each of two results: whole rows
# forward with the final states of sequences; whole rows backward in several warps, whose groups are not in strips; and
# backward rows of one strip that end within a group.
TWICE = {tuning.Tile(1, 64, 8, 1)} if OLD else set()
TWICE_BACK = {tuning.Tile(1, 256, 8, 4)} if OLD else set()
TWICE_CUT = {tuning.Tile(1, 32, 4, 1), tuning.Tile(1, 32, 8, 1)} if OLD else set()


# Batch entries and channels: rows of long tiles, rows of which all fit at once, and few, which programs share.
ENOUGH, SOME_ROWS, FEW_ROWS = (2, 352), (2, 192), (4, 2)
# The same of channels, for each of their tables; those of an odd number begin anywhere.
MANY, WIDE, SOME, FEW_CHANNELS, ODD = (128, 64), (64, 128), (32, 64), (4, 64), (128, 65)


class Kernel(NamedTuple):
    """One launch: `[B, C, T]` or, with `dim=-2`, `[B, T, C]`, packed where there are sequences."""

    name: str
    T: int
    dtype: torch.dtype
    dim: int = -1
    sequences: int = 0
    reverse: bool = False
    final: bool = False
    rows: tuple[int, int] = ENOUGH
    fitted: tuning.Tile | None = None

    def __str__(self) -> str:
        words = [self.name, NAMES[self.dtype], f"T{self.T}", "last" if self.dim == -2 else "first"]
        words += ["x".join(map(str, self.rows))] if self.rows != ENOUGH else []
        words += [f"packed{self.sequences}"] if self.sequences else []
        return "-".join(words + [word for word in ("reverse", "final") if getattr(self, word)])

    def launch(self) -> None:
        B, C = self.rows
        x = torch.empty((B, C, self.T) if self.dim == -1 else (B, self.T, C), dtype=self.dtype)
        cu_seqlens = None
        if self.sequences:
            cu_seqlens = torch.arange(self.sequences + 1, dtype=torch.int32) * (self.T // self.sequences)
        if self.name == "forward":
            launch.forward(x, x, None, cu_seqlens, self.dim, self.reverse, False, self.final)
        else:
            needs = (True, True, False)
            launch.backward(x, x, None, cu_seqlens, x, None, self.dtype, self.dim, self.reverse, False, needs)

    def code(self, target: str) -> Code:
        return code_of(target, self.launch)[-1]

    @property
    def tile(self) -> tuning.Tile:
        if self.fitted is not None:
            return self.fitted
        B, C = self.rows
        itemsize, known = self.dtype.itemsize, {"backward": self.name == "backward", "n_rows": B * C}
        if self.dim == -2:
            return tuning.channels_last(self.T, C, itemsize, **known)
        packed, n = self.sequences > 0, max(1, self.sequences)
        return tuning.time_contiguous(self.T, itemsize, packed=packed, n_sequences=n, **known)

    @property
    def inputs(self) -> int:
        return 2 if self.name == "forward" else 3

    @property
    def outputs(self) -> int:
        return 1 if self.name == "forward" else 2

    @property
    def even(self) -> bool:
        """Whether rows begin and end with groups; those of channels do."""
        return self.dim == -2 or self.T % self.tile.width == 0

    def on(self, target: str) -> Kernel:
        """The kernel with the tile that shared memory leaves it on a target."""
        return self._replace(fitted=tuning.fitted(self.tile, self.inputs * self.dtype.itemsize, SHARED_BYTES[target]))

    @property
    def at_once(self) -> bool:
        """Whether all steps of a tile of channels are one load."""
        return self.dim == -2 and self.dtype.itemsize == 2 and self.tile.stages > 2

    def channels(self, target: str) -> int:
        """How many neighbouring ones a thread may hold: 16 bytes of them, where those of a step are whole vectors."""
        aligned = self.rows[1] * self.dtype.itemsize % 16 == 0
        return min(16 // self.dtype.itemsize, self.pairs(target)) if aligned else 1

    @property
    def one_tile(self) -> bool:
        """Whether one tile holds a row, wherever it begins: rows that may begin within a line count from the line."""
        tile, line = self.tile, 128 // self.dtype.itemsize
        steps = tile.groups * tile.width
        aligned = self.T % steps == 0 or (self.even and (self.dim == -2 or self.T % line == 0))
        return self.T + (0 if aligned else line - 1) <= steps

    def pairs(self, target: str) -> int:
        """Groups that a thread holds, and so pairs of the scan."""
        return max(1, self.tile.rows * self.tile.groups // (LANES[target] * self.tile.num_warps))

    def words(self, target: str) -> int:
        """How many maps of a window a thread reads."""
        return max(1, self.tile.rows * self.tile.window // (LANES[target] * self.tile.num_warps))

    def is_thin(self, target: str) -> bool:
        """Whether there are threads without a group of their own."""
        return self.tile.rows * self.tile.groups < LANES[target] * self.tile.num_warps

    @property
    def in_strips(self) -> bool:
        """Whether groups are scanned in strips of 32: of one row, where one warp holds a tile and walks none packed."""
        one_row = self.dim == -1 and self.tile.rows == self.tile.num_warps == 1
        return one_row and (not self.sequences or self.tile.window > 0)

    def trades(self, target: str) -> bool:
        """Whether strips trade places with lanes: of rows that programs share, packed or of 16 bits forward.

        Not on AMD, of whose lanes two strips share a warp.
        """
        crowded = self.sequences or (self.dtype.itemsize == 2 and self.name == "forward")
        return bool(self.in_strips and self.tile.window and crowded) and not target.startswith("gfx")

    @property
    def variants(self) -> int:
        """Packed rows forward have code of their own for tiles where no sequence begins or ends."""
        quick = self.name == "forward" and self.sequences and self.even and 256 <= self.tile.steps <= 2048
        return 2 if quick else 1

    @property
    def twice(self) -> bool:
        """Whether groups are scanned once for each of two results."""
        if self.name == "forward":
            return self.final and self.sequences > 0 and self.even and self.one_tile and self.tile in TWICE
        whole = self.even and self.one_tile
        return not self.sequences and (self.tile in TWICE_BACK if whole else not self.even and self.tile in TWICE_CUT)

    def scans(self, target: str) -> int:
        """Parallel scans in the code: of groups, which are several strips; then of maps of tiles and of windows.

        Those are in strips too where groups are, but not on AMD.
        """
        scans = 2 if self.in_strips and self.tile.groups > 32 else 1
        if self.tile.window:
            each = 2 if self.in_strips and self.tile.window > 32 and not target.startswith("gfx") else 1
            return (scans + 2 * each) * self.variants
        return scans * self.variants * (2 if self.twice else 1)

    def shuffles(self, target: str) -> int:
        """How many a tile may take.

        In strips a scan combines the 2 values of a map: 2 shuffles a round for each that a thread holds, one for the
        state of its neighbour, and 2 for the map of the whole strip where there are several. The scan over strips
        combines 4 values, those before each as well; one of all groups does so in every round. Where strips and lanes
        trade places, that takes shuffles of half the strips for each bit of their number, for the 2 values of a map and
        the state that comes back; then a lane has one map, brought into scan order by 2.
        The state after a tile is one sum for each row that a thread holds part of, within the warp and across warps;
        where final states of sequences are stored, Triton may take it in the layout of those too. A final state is
        brought to the thread that stores it.
        Where rows begin anywhere, the rows of a program agree on how far one can read: 64 bits of every input.
        """
        rows, groups, _, warps, *_ = self.tile
        # Neighbouring channels take lanes too.
        lanes = LANES[target]
        if self.dim == -2:
            lanes = max(1, lanes * self.channels(target) // rows)
        pairs, rounds = self.pairs(target), _log2(min(lanes, groups))
        if self.in_strips:
            scan = 2 * min(5, rounds) + 1 + (2 if pairs > 1 else 0) + (2 if groups > 32 else 0)
            # Of AMD's a warp holds two strips side by side, which takes a round more.
            scan += 4 * (2 if lanes > 32 and groups > 32 else 0)
        else:
            scan = 4 * (rounds + (2 if self.dim == -2 else _brought(pairs, 2 * lanes <= groups, warps)))
        scans = pairs * scan
        if self.trades(target):
            scans = 3 * _log2(pairs) * pairs // 2 + scan + 2
        shuffles = self.variants * scans * (2 if self.twice else 1)
        if self.final or not self.one_tile:
            sums = 2 if self.final and self.sequences else 1
            shuffles += sums * min(rows, pairs) * (rounds + _log2(warps))
        if self.final and self.dim == -1:
            shuffles += _log2(rows)
        if not self.even:
            shuffles += self.inputs * 2 * _log2(rows)
        return shuffles + (self.variants * self.exchange(target) if self.tile.window else 0)

    def exchange(self, target: str) -> int:
        """Shuffles for what the programs of a row hand on.

        The map of the tile is two sums. Maps of tiles, and of windows, take a minimum, which says whether all are
        there, a scan of two values and two sums. NVIDIA's warps have an instruction for the minimum. Of channels the
        maps are brought to other threads and back besides, in fewer rounds.
        After strips all lanes hold the map of the tile: no sum, but on AMD a round across its two strips side by side.
        There the rest is the same; elsewhere maps are composed in strips too, as groups are, with no neighbour to ask.
        """
        warps, lanes = self.tile.num_warps, LANES[target]
        held, total = max(1, self.tile.window // (lanes * warps)), _log2(lanes) + _log2(warps)
        if self.in_strips and not target.startswith("gfx"):
            return 2 * held * (2 * 5 + 2 + (2 if held > 1 else 0))
        least = total if self.dim == -2 or target.startswith("gfx") else _log2(warps)
        brought = 2 if self.dim == -2 else _brought(held, held > 1, warps)
        scan = held * 2 * (_log2(lanes) + brought)
        return 2 * (_log2(lanes // 32) if self.in_strips else total) + 2 * (least + 2 * total + scan)

    def barriers(self, target: str) -> int:
        """How many a tile may take.

        The parts of a scan in different warps meet in shared memory: a barrier after writing and one before what was
        read is overwritten, which the last scan of a tile that is alone does without. Those of a sum, as of the carry,
        meet there twice, with one barrier between, each time for as many rows as a warp has lanes. A pipeline waits for
        each of its loads ahead and once more for all; warps which meet anyway wait there. A final state may change its
        layout on the way; each column may where sequences end anywhere, and where channels are no whole vectors or
        fewer than threads. Where programs share a row, every total and scan of the exchange meets, and on AMD the
        ticket is told to all.
        """
        barriers, many = 0, self.tile.num_warps > 1
        if many:
            carried = self.final or not self.one_tile
            last = 0 if carried or self.dim == -2 else 1
            barriers += self.variants * (2 * (2 if self.twice else 1) - last)
            if carried:
                barriers += (4 if self.dim == -2 else 3) * max(1, self.tile.rows // 32)
            if self.dim == -2 and (self.rows == ODD or self.is_thin(target)):
                barriers += 2 * self.inputs * self.tile.width
            if self.tile.window:
                barriers += self.variants * (2 * 3 + 2 * (3 + 2 + 2 * 3))
        if self.final and (self.sequences or many):
            barriers += 2 * (self.tile.width + self.scans(target) - 1 if self.sequences else 1)
        if self.tile.window and target.startswith("gfx"):
            barriers += 2
        if self.tile.stages > 1:
            barriers += self.tile.stages + (-1 if many and self.dim == -1 else 1)
        return barriers

    def spilled(self, target: str) -> int:
        """Bytes that may be spilled."""
        if target.startswith("gfx"):
            return SPILLED_THIN if OLD and self.tile.stages > 1 and self.is_thin(target) else 0
        if self.at_once and self.sequences:
            return SPILLED_RESETS
        if self.tile.registers is not None and self.tile.window:
            return SPILLED_SPLIT if target == "sm_90" else SPILLED_SPLIT_ELSEWHERE
        if self.tile.window:
            return SPILLED_ELSEWHERE  # beside what is held for the exchange
        return 0 if target == "sm_90" and VERSION <= (3, 7) else SPILLED_ELSEWHERE


def _log2(n: int) -> int:
    return n.bit_length() - 1


def _brought(pairs: int, longer: bool, warps: int) -> int:
    """Shuffles for each value of a scan beside its rounds: between warps, or from one pair of a thread to the next.

    `longer`: of pairs that lie one after another in a warp that is alone, one more brings the last to all lanes.
    """
    if warps > 1:
        return 1
    return 2 if longer else 1 if pairs > 1 else 0


KERNELS, DTYPES = ("forward", "backward"), (torch.float32, torch.bfloat16)


def _kernels(T: Iterable[int], *sequences: int, **fixed: Any) -> list[Kernel]:
    every = itertools.product(T, KERNELS, DTYPES, sequences or (0,))
    return [Kernel(name, each, dtype, sequences=n, **fixed) for each, name, dtype, n in every]


def _everywhere(kernels: list[Kernel], targets: tuple[str, ...] = tuple(TARGETS)) -> Callable[..., None]:
    every = [pytest.param(t, k, id=f"{t}-{k}") for t in targets for k in kernels]
    return pytest.mark.parametrize(("target", "kernel"), every)


# The oldest Triton compiles every kernel for the target of the tables, and for each other target one half of those that
# the newer one compiles for all: two targets with one way to compile meet the same half, of others one meets either.
HALF = {"sm_80": 1, "sm_86": 0, "sm_89": 0, "sm_100": 1, "gfx942": 0}


def _elsewhere(kernels: list[Any], targets: tuple[str, ...]) -> Callable[..., None]:
    # The targets of one kernel follow one another: of two with one PTX the second finds what the first has compiled.
    every = [(t, k) for k in kernels for t in targets if not OLD or k in half(kernels, HALF[t])]
    return pytest.mark.parametrize(("target", "kernel"), [pytest.param(t, k, id=f"{t}-{k}") for t, k in every])


# Every configuration on one target, some on all: rows that fill tiles, and rows that end within one or within a group.
ONE = _kernels([2**power - step for power in range(7, 17) for step in (0, 1)] + [1000, 1001])
PACKED = _kernels((511, 512), 2) + _kernels((4095, 4096), 64) + _kernels((65_535, 65_536), 1)
LONG = _kernels((32_768,), rows=SOME_ROWS)
SHARED = _kernels((32_767, 32_768, 32_772), 0, 2, rows=FEW_ROWS)
LAST = [k for rows in (MANY, SOME, FEW_CHANNELS, ODD) for k in _kernels((512,), dim=-2, rows=rows)]
LAST += _kernels((4096, 8192), dim=-2, rows=MANY) + _kernels((4096,), dim=-2, rows=WIDE)
LAST += [Kernel("backward", 512, torch.bfloat16, -2, rows=WIDE)]
LAST_SHARED = _kernels((4096, 32_768), 0, 2, dim=-2, rows=FEW_CHANNELS)
LAST_PACKED = [k for rows in (MANY, SOME, FEW_CHANNELS) for k in _kernels((512,), 2, dim=-2, rows=rows)]
LAST_SHORT = _kernels((2, 16, 32, 64), dim=-2, rows=MANY)
SHORT = _kernels((127, 256, 1024))
FEW = _kernels((4097, 16_384))
FEW_PACKED = _kernels((512,), 2) + _kernels((4096,), 64)
FEW_LAST = [k for rows in (SOME, ODD, WIDE) for k in _kernels((4096 if rows == WIDE else 512,), dim=-2, rows=rows)]
FEW_SHARED = _kernels((32_768,), 0, 2, rows=FEW_ROWS)
WAITING = FEW_SHARED + _kernels((4096,), dim=-2, rows=FEW_CHANNELS)
ELSEWHERE = tuple(t for t in TARGETS if t != "sm_90")


def _check(target: str, kernel: Kernel) -> Code:
    """What holds for every kernel."""
    code, kernel = kernel.code(target), kernel.on(target)
    tile = kernel.tile
    assert code.name == kernel.name and code.warps == tile.num_warps
    assert code.spilled <= kernel.spilled(target)
    assert code.shared <= SHARED_BYTES[target]
    assert code.doubles == 0, "arithmetic is in float32"
    if code.amd:
        if not kernel.is_thin(target):
            # Stages of a pipeline are copies of the loop there, and each may meet its neighbour.
            copies = tile.stages
            assert code.scans <= copies * kernel.scans(target)
            assert code.shuffles <= copies * kernel.shuffles(target)
            assert code.barriers <= copies * (kernel.barriers(target) + 1)
        return code
    assert code.scans <= kernel.scans(target)
    assert code.shuffles <= kernel.shuffles(target)
    assert code.barriers <= kernel.barriers(target)
    most = REGISTERS_LAST if kernel.dim == -2 else REGISTERS_PACKED if kernel.sequences else REGISTERS
    assert code.registers <= max(most, tile.registers or 0)
    return code


@_everywhere(ONE + PACKED + LONG, ("sm_90",))
def test_time_contiguous(target: str, kernel: Kernel) -> None:
    code, pairs = _check(target, kernel), kernel.pairs(target)
    # Whole groups of every tensor move 16 bytes at a time.
    assert code.wide_loads >= kernel.inputs * pairs and code.wide_stores >= kernel.outputs * pairs
    if kernel.even and not kernel.sequences and kernel.tile.stages == 1:
        # Even rows have no element that moves alone, but for the one before each group that backward needs.
        before = pairs if kernel.name == "backward" else 0
        assert code.loads == code.wide_loads + before and code.stores == code.wide_stores


@_elsewhere(FEW + FEW_PACKED + FEW_SHARED, ELSEWHERE)
def test_time_contiguous_elsewhere(target: str, kernel: Kernel) -> None:
    code, pairs = _check(target, kernel), kernel.pairs(target)
    assert code.wide_stores >= kernel.outputs * pairs
    assert code.wide_loads >= (1 if code.amd else kernel.inputs * pairs)


@_everywhere(SHARED, ("sm_90",))
def test_rows_shared_by_programs(target: str, kernel: Kernel) -> None:
    assert kernel.tile.window
    code, pairs = _check(target, kernel), kernel.pairs(target)
    assert code.wide_loads >= kernel.inputs * pairs and code.wide_stores >= kernel.outputs * pairs
    # No ticket; a map for others from each tile, or from the last one of a window, and again without resets.
    variants = kernel.variants
    assert code.count(r"atom\.global[\w.:]*\.add") == 0
    assert code.count(r"atom\.global[\w.:]*\.or\.b64") == 2 * variants
    # Each map is read whole, by a load that is not kept from an earlier one: before a program waits, and again where it
    # is missing, for which the compiler makes one load of that in the loop and that behind it.
    assert code.count(r"ld\.volatile\.global[\w.:]*\.[bu]64") >= 2 * 2 * kernel.words(target) * variants


@_everywhere(WAITING, ("sm_90", "gfx942"))
def test_a_program_that_waits_reads_again(target: str, kernel: Kernel) -> None:
    code = kernel.code(target)
    # An atomic that returns what was there (sc0), or a load that is not kept from an earlier one.
    read = r"(buffer|global)_atomic_or_x2 .* sc0$" if code.amd else r"ld\.volatile\.global[\w.:]*\.[bu]64"
    # A program waits for the tiles of its window and for the windows before, and loops nowhere else.
    loops = code.inner_loops
    assert len(loops) == 2 * kernel.variants
    # A thread reads again the words that it has of the maps of a window, each only while it is missing, which is 0.
    for loop in loops:
        assert len(re.findall(read, loop, re.MULTILINE)) == kernel.words(target)
        missing = set(re.findall(r"setp\.eq\.[bsu]64\s+(%p\d+), %rd\d+, 0;", loop))
        assert code.amd or set(re.findall(rf"@(%p\d+) {read}", loop)) <= missing


@_everywhere(LAST + LAST_PACKED + LAST_SHORT, ("sm_90",))
def test_channels_last(target: str, kernel: Kernel) -> None:
    _check_last(target, kernel)


@_everywhere(LAST_SHARED, ("sm_90",))
def test_channels_shared_by_programs(target: str, kernel: Kernel) -> None:
    assert kernel.tile.window
    code = _check(target, kernel)
    # No ticket; a map from each tile or window.
    assert code.count(r"atom\.global[\w.:]*\.add") == 0 and code.count(r"atom\.global[\w.:]*\.or\.b64") >= 2


# All where shared memory is least, which decides how many stages a tile has.
@_everywhere([k for k in LAST if k not in FEW_LAST], ("sm_86",))
def test_channels_last_in_little_shared_memory(target: str, kernel: Kernel) -> None:
    _check_last(target, kernel)


@_elsewhere(FEW_LAST, ELSEWHERE)
def test_channels_last_elsewhere(target: str, kernel: Kernel) -> None:
    _check_last(target, kernel)


def _check_last(target: str, kernel: Kernel) -> None:
    code, kernel = _check(target, kernel), kernel.on(target)
    tile = kernel.tile
    # A step of a group moves as vectors of as many channels as a thread holds side by side, and nothing moves twice but
    # for what is loaded ahead.
    steps = tile.width * kernel.pairs(target)
    vectors = steps // kernel.channels(target)
    copies = tile.stages if code.amd and tile.stages > 2 else 1
    if kernel.at_once:
        # All steps of a tile are loaded as vectors of 16 bytes, as often as there are stages. Stores are narrow.
        assert code.wide_loads == kernel.inputs * steps // 8 * tile.stages
        assert code.stores == kernel.outputs * steps * copies
        return
    loads = kernel.inputs * vectors * tile.stages
    assert code.loads >= loads if kernel.sequences else code.loads == loads
    assert code.stores == kernel.outputs * vectors * copies


def test_every_configuration_is_compiled() -> None:
    compiled = {(k.name, k.dtype, k.tile) for k in ONE + PACKED + LONG + SHARED + LAST + LAST_SHARED + LAST_SHORT}
    lengths = sorted({2**power + step for power in range(4, 22) for step in (-8, -1, 0, 1, 8)})
    chosen = {
        (name, dtype, Kernel(name, T, dtype, sequences=n, rows=rows).tile)
        for T, name, dtype, rows in itertools.product(lengths, KERNELS, DTYPES, (ENOUGH, SOME_ROWS, FEW_ROWS))
        for n in (0, 1, 1 + T // 1000, 1 + T // 32)
    }
    chosen |= {
        (name, dtype, Kernel(name, T, dtype, -2, rows=rows).tile)
        for T, name, dtype in itertools.product([1, *lengths], KERNELS, DTYPES)
        for rows in (MANY, WIDE, SOME, FEW_CHANNELS, ODD)
    }
    assert chosen - compiled == set()


@pytest.mark.parametrize("kernel", FEW + LONG + FEW_PACKED + FEW_SHARED + LAST, ids=str)
def test_descending_shuffles_no_more_than_ascending(kernel: Kernel) -> None:
    ahead, back = kernel.code("sm_90"), kernel._replace(reverse=True).code("sm_90")
    assert back.shuffles == ahead.shuffles and back.barriers == ahead.barriers
    assert (back.wide_loads, back.wide_stores) == (ahead.wide_loads, ahead.wide_stores)


@pytest.mark.parametrize(
    "kernel", [k for k in SHORT + FEW + LONG + PACKED + FEW_SHARED + LAST + LAST_PACKED if k.name == "forward"], ids=str
)
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


# One kernel of every kind, as few as have both directions and both dtypes.
@pytest.mark.parametrize("kernel", [FEW[0], FEW[7], FEW_PACKED[1], FEW_SHARED[4], FEW_LAST[3], FEW_LAST[8]], ids=str)
@pytest.mark.parametrize(("target", "like"), SAME_PTX.items())
def test_targets_of_one_ptx(target: str, like: str, kernel: Kernel) -> None:
    (*_, own), (*_, taken) = (code_of(target, kernel.launch, by_itself=by_itself) for by_itself in (True, False))
    assert own == taken and own.text != kernel.code(like).text
    assert kernel.on(target) == kernel.on(like)


def test_halves_meet_all_that_two_choices_have_in_common() -> None:
    few = FEW + FEW_PACKED + FEW_SHARED
    for kernels in (FEW, FEW_PACKED, FEW_SHARED, FEW_LAST, few):
        halves = [half(kernels, which) for which in (0, 1)]
        assert sorted(halves[0] + halves[1], key=kernels.index) == kernels and len(halves[0]) == len(halves[1])
        for one in halves:
            for a, b in itertools.combinations(("name", "dtype", "T", "sequences", "rows"), 2):
                assert {(getattr(k, a), getattr(k, b)) for k in one} == {
                    (getattr(k, a), getattr(k, b)) for k in kernels
                }


def test_table_of_a_packed_batch() -> None:
    table, scan = code_of("sm_90", Kernel("forward", 512, torch.float32, sequences=2).launch)
    assert (table.name, scan.name) == ("mark_sequences", "forward")
    assert table.spilled == 0


class ComplexKernel(NamedTuple):
    """One launch on complex states, the rest as in `Kernel`."""

    name: str
    T: int
    dtype: torch.dtype = torch.complex64
    gates_dtype: torch.dtype = torch.complex64
    dim: int = -1
    packed: bool = False
    reverse: bool = False
    log: bool = False

    def __str__(self) -> str:
        words = [self.name, NAMES[self.gates_dtype], NAMES[self.dtype], f"T{self.T}"]
        words += ["last" if self.dim == -2 else "first"]
        return "-".join(words + [word for word in ("packed", "reverse", "log") if getattr(self, word)])

    def launch(self) -> None:
        shape = (4, 2, self.T) if self.dim == -1 else (4, self.T, 64)
        gates, x = torch.zeros(shape, dtype=self.gates_dtype), torch.zeros(shape, dtype=self.dtype)
        cu_seqlens = torch.tensor([0, self.T // 2, self.T], dtype=torch.int32) if self.packed else None
        state = torch.zeros([2, 4, shape[1 if self.dim == -1 else 2]][not self.packed :], dtype=self.dtype)
        if self.name == "forward":
            launch.forward(gates, x, state, cu_seqlens, self.dim, self.reverse, self.log, True)
        else:
            launch.backward(
                gates, x, state, cu_seqlens, x, state, self.dtype, self.dim, self.reverse, self.log, (True, True, True)
            )

    @property
    def tile(self) -> tuning.Tile:
        if self.dim == -2:
            return tuning.complex_channels_last(self.T, self.dtype.itemsize)
        return tuning.complex_time_contiguous(self.T, self.dtype.itemsize, packed=self.packed)


PAIRS = [(torch.complex64, torch.complex64), (torch.complex128, torch.complex128), (torch.complex64, torch.float32)]
COMPLEX = [
    ComplexKernel(name, T, dtype, gates_dtype, dim, packed)
    for name, T, (dtype, gates_dtype), dim, packed in itertools.product(
        KERNELS, (64, 4095, 4096), PAIRS, (-1, -2), (False, True)
    )
]


LONG_COMPLEX = [k for k in COMPLEX if k.T == 4096 and k.dtype == k.gates_dtype]


@pytest.mark.parametrize("kernel", COMPLEX, ids=str)
def test_complex_states(kernel: ComplexKernel) -> None:
    _check_complex("sm_90", kernel)


@_elsewhere(LONG_COMPLEX, ("sm_80", "sm_86", "sm_89", "sm_100"))
def test_complex_states_elsewhere(target: str, kernel: ComplexKernel) -> None:
    _check_complex(target, kernel)


def _check_complex(target: str, kernel: ComplexKernel) -> None:
    code = code_of(target, kernel.launch)[-1]
    tile = kernel.tile
    assert code.name == kernel.name and code.warps == tile.num_warps and code.scans == 1
    assert code.spilled <= (0 if target == "sm_90" else SPILLED_ELSEWHERE) and code.registers <= REGISTERS_LAST
    if kernel.dim == -1 and not kernel.packed:
        # With 128 registers a thread, four programs of four warps fit on a multiprocessor.
        assert code.registers <= (REGISTERS if kernel.T % 2 == 0 else REGISTERS_PACKED)
        # Of each of four values, doubles in two halves: one shuffle a round and one from the thread before. Beside them
        # the sum of either part of the carry.
        halves, pairs = kernel.dtype.itemsize // 8, max(1, tile.groups // (32 * tile.num_warps))
        sums = 2 * (5 + _log2(tile.num_warps))
        assert code.shuffles <= halves * (pairs * 4 * (5 + 1) + sums) + 4 * halves * pairs
    assert (code.doubles > 0) is (kernel.dtype == torch.complex128)
    # Whole groups of complex numbers are stored 16 bytes at a time, and steps of rows that begin anywhere as pairs.
    width = r"v2\.b64|v4" if kernel.dtype == torch.complex128 or kernel.dim == -2 or kernel.T % 2 == 0 else r"v2|v4"
    outputs = 2 if kernel.name == "backward" and kernel.gates_dtype.is_complex else 1
    assert code.count(rf"st\.global[.\w:]*\.({width})") >= outputs


@pytest.mark.parametrize("kernel", [k for k in LONG_COMPLEX if not k.packed], ids=str)
def test_descending_complex_states(kernel: ComplexKernel) -> None:
    ahead = code_of("sm_90", kernel.launch)[-1]
    back = code_of("sm_90", kernel._replace(reverse=True).launch)[-1]
    assert back.spilled == 0 and back.shuffles <= ahead.shuffles and back.scans == 1
    assert (back.loads, back.stores) == (ahead.loads, ahead.stores)


@pytest.mark.parametrize("name", KERNELS)
def test_complex_tiles_load_16_bytes(name: str) -> None:
    code = code_of("sm_90", ComplexKernel(name, 4096).launch)[-1]
    tile = ComplexKernel(name, 4096).tile
    groups = tile.groups // (32 * tile.num_warps)
    # Backward reads gates and states one step off: as vectors of 8 bytes.
    assert code.wide_loads >= groups * tile.stages * (2 if name == "forward" else 1)
    assert code.wide_stores == groups * (1 if name == "forward" else 2)
