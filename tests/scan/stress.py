"""Rows that programs share, on a GPU that is busy otherwise: `python -m tests.scan.stress --launches 10000`.

Every launch draws a shape, a dtype and a direction, or both at once, scans forward and backward while a second stream
holds now more and now less of the GPU, and compares every output with the float64 result of rows that are not shared. A
launch that takes too long ends the process with a sentence, for programs that wait for each other may wait for ever. In
Triton's interpreter the rows are short, the tiles small and nothing else runs.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import configure, launch, launch_shared, tuning
from tests.conftest import INTERPRETING, ON_GPU
from tests.scan.cases import DTYPES, NAMES
from tests.scan.tilings import tiles_chosen_by

DTYPES_HERE = DTYPES[2:] if INTERPRETING else DTYPES  # the interpreter does not round to 16 bits as a GPU does
ON = torch.device("cuda" if ON_GPU else "cpu")
HUNG = 3  # the exit status of a process that has waited too long
INTERRUPTED = 130

_PLANS: dict[bool, dict[Any, launch.Plan]] = {False: {}, True: {}}
_PLANS_OF_BOTH: dict[Any, launch.Plan] = {}
_chosen = tuning.time_contiguous


class Drawn(NamedTuple):
    """One launch: the shape of its tensors, their dtype and what is asked."""

    shape: tuple[int, int]
    dtype: torch.dtype
    dim: int
    reverse: bool
    offsets: tuple[int, ...] | None
    both: bool = False

    @classmethod
    def of(cls, choose: random.Random) -> Drawn:
        rows = choose.randint(1, 3 if INTERPRETING else 64)
        shortest, longest, tile = (20, 300, 32) if INTERPRETING else (2**12, min(2**20, 2**24 // rows), 2**12)
        # Every order of magnitude is as likely as another, and one length in four fills its tiles.
        T = int(math.exp(choose.uniform(math.log(shortest), math.log(longest))))
        if choose.random() < 0.25:
            T = max(1, T // tile) * tile
        dim, offsets = choose.choice((-1, -2)), None
        if choose.random() < 0.5:
            offsets = (0, *sorted(choose.randint(0, T) for _ in range(choose.choice((1, 4, 100)))))
        dtype, reverse = choose.choice(DTYPES_HERE), choose.random() < 0.5
        both = choose.random() < 0.5 and dim == -1 and offsets is None and dtype != torch.float64
        if both:
            T = min(T // 8 * 8, 2**17)
        return cls((rows, T) if dim == -1 else (T, rows), dtype, dim, reverse, offsets, both)

    def __str__(self) -> str:
        packed = "" if self.offsets is None else f", {len(self.offsets) - 1} sequences"
        order = ", both directions" if self.both else ", reverse" if self.reverse else ""
        return f"{list(self.shape)} with dim={self.dim} in {NAMES[self.dtype]}{order}{packed}"


class Data(NamedTuple):
    """What is scanned, and whether any order of sums and products gives the same: signs and small integers."""

    gates: Tensor
    tokens: Tensor
    d_states: Tensor
    cu_seqlens: Tensor | None
    exact: bool

    @classmethod
    def of(cls, drawn: Drawn, choose: random.Random) -> Data:
        fill = torch.Generator(ON).manual_seed(choose.getrandbits(32))
        exact = choose.random() < 0.5
        if exact:
            # A state holds all tokens up to the last gate of zero; in float16 squares of states must not overflow.
            zeros = 0.02 if drawn.dtype == torch.float16 else 1e-5
            chance = torch.rand(drawn.shape, generator=fill, device=ON)
            gates = torch.where(chance < zeros, 0.0, torch.where(chance < 0.5, -1.0, 1.0))
            tokens, d_states = (
                torch.randint(-1, 2, drawn.shape, generator=fill, device=ON).to(drawn.dtype) for _ in range(2)
            )
        else:
            gates = torch.rand(drawn.shape, generator=fill, device=ON)
            tokens, d_states = (torch.randn(drawn.shape, generator=fill, device=ON).to(drawn.dtype) for _ in range(2))
        cu_seqlens = None if drawn.offsets is None else torch.tensor(drawn.offsets, device=ON)
        return cls(gates.to(drawn.dtype), tokens, d_states, cu_seqlens, exact)


class Scan(NamedTuple):
    """Forward and backward as the operator calls them."""

    drawn: Drawn
    cu_seqlens: Tensor | None

    def forward(self, gates: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """States and final states."""
        states, final = launch.forward(
            gates, tokens, None, self.cu_seqlens, self.drawn.dim, self.drawn.reverse, False, True
        )
        assert final is not None
        return states, final

    def backward(self, gates: Tensor, states: Tensor, d_states: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of tokens and gates."""
        d_gates, d_tokens, _ = launch.backward(
            gates, states, None, self.cu_seqlens, d_states, None, states.dtype, self.drawn.dim, self.drawn.reverse,
            False, (True, True, False),
        )  # fmt: skip
        assert d_gates is not None and d_tokens is not None
        return d_tokens, d_gates


def _tiles(shared: bool) -> AbstractContextManager[None]:
    """Lets programs share all rows, or none."""

    def rows(T: int, itemsize: int, **known: Any) -> tuning.Tile:
        if not shared:
            return tuning.Tile(1, 256, 16 // itemsize, 4)
        if INTERPRETING:
            return tuning.Tile(1, 8, 16 // itemsize, 1, window=4, run=1 + T % 3)
        # What tuning chooses for few rows, were they as long as that takes and as ragged as they are; in runs too.
        return _chosen(2**15 + T % 2**15, itemsize, **known | {"n_rows": 1})._replace(run=(1, 16, 64)[T % 3])

    def channels(T: int, C: int, itemsize: int, **_: Any) -> tuning.Tile:
        if INTERPRETING:
            return tuning.Tile(4, 4, 4, 4, window=4 if shared else 0)
        return tuning.Tile(16, 32, 4, 4, window=128 if shared else 0)

    return tiles_chosen_by(rows, channels, _PLANS[shared])


@contextmanager
def _both_shared() -> Iterator[None]:
    """Lets programs share all rows of both directions."""

    def tiles(T: int, itemsize: int, *, backward: bool, **_: Any) -> tuning.Tile:
        if INTERPRETING:
            return tuning.Tile(1, 8, 16 // itemsize, 1, window=128)
        table = (tuning._SHARED_BACKWARD if backward else tuning._SHARED_FORWARD)[itemsize]
        return next(tile for longest, tile in table if tile.window and longest >= T)

    before = tuning.shared, configure.multiprocessors, launch._plans
    tuning.shared, launch._plans = tiles, _PLANS_OF_BOTH  # type: ignore[assignment]
    if INTERPRETING:
        configure.multiprocessors = lambda tensor: 132
    try:
        yield
    finally:
        tuning.shared, configure.multiprocessors, launch._plans = before


Bounded = tuple[Tensor, Tensor]
"""What a result is to be, and by how much it may be off before it is rounded to its dtype"""


def check(drawn: Drawn, data: Data) -> None:
    """A launch forward and backward against rows that are not shared, in float64, within what rounding explains."""
    scan = Scan(drawn, data.cu_seqlens)
    with _tiles(True):
        states, final = scan.forward(data.gates, data.tokens)
        d_tokens, d_gates = scan.backward(data.gates, states, data.d_states)
    wanted = _wanted(scan, data, states)
    for name, result in (("states", states), ("final_state", final), ("d_tokens", d_tokens), ("d_gates", d_gates)):
        _compare(drawn, name, result, wanted[name])


def check_both(drawn: Drawn, data: Data) -> None:
    """The same of both directions of the same tensors in one launch each way."""
    with _both_shared():
        outputs, _ = launch_shared.forward(data.gates, data.tokens, False, True, True, True)
        states, back = outputs.states, outputs.states_reverse
        assert states is not None and back is not None
        made = launch_shared.backward(
            data.gates, states, back, data.d_states, None, drawn.dtype, False, (True, True)
        )  # fmt: skip
    assert made is not None
    (d_gates, d_tokens), _ = made
    ahead, behind = (
        _wanted(Scan(drawn._replace(reverse=reverse), None), data, each)
        for reverse, each in ((False, states), (True, back))
    )
    for name, result, wanted in (
        ("states", states, ahead["states"]),
        ("states_reverse", back, behind["states"]),
        ("sum", outputs.added, _added(drawn, ahead["states"], behind["states"])),
        ("final_state", outputs.final, ahead["final_state"]),
        ("final_state_reverse", outputs.final_reverse, behind["final_state"]),
        ("d_tokens", d_tokens, _added(drawn, ahead["d_tokens"], behind["d_tokens"])),
        ("d_gates", d_gates, _added(drawn, ahead["d_gates"], behind["d_gates"])),
    ):
        assert result is not None
        _compare(drawn, name, result, wanted)


def _added(drawn: Drawn, a: Bounded, b: Bounded) -> Bounded:
    error = a[1] + b[1]
    return a[0] + b[0], error + _unit(drawn.dtype) * (a[0].abs() + b[0].abs() + error)


def _wanted(scan: Scan, data: Data, states: Tensor) -> dict[str, Bounded]:
    """What a scan and its backward, which is given `states`, are to return."""
    wide = data.gates.double(), data.tokens.double(), states.double(), data.d_states.double()
    unit = _unit(scan.drawn.dtype)
    with _tiles(False):
        exact, exact_final = scan.forward(*wide[:2])
        exact_d_tokens, exact_d_gates = scan.backward(wide[0], *wide[2:])
        error, final_error, d_error = _bounds(scan, *(t.abs() for t in wide))
        if data.exact:
            error, final_error, d_error = (torch.zeros_like(e) for e in (error, final_error, d_error))
        # The other factor of a gate's gradient is the state that backward was given.
        _, before_error = scan.backward(torch.zeros_like(wide[0]), wide[2].abs(), d_error)
    return {
        "states": (exact, error),
        "final_state": (exact_final, final_error),
        "d_tokens": (exact_d_tokens, d_error),
        "d_gates": (exact_d_gates, before_error + unit * (before_error + exact_d_gates.abs())),
    }


def _compare(drawn: Drawn, name: str, result: Tensor, wanted: Bounded) -> None:
    exact, bound = wanted
    info = torch.finfo(result.dtype)
    # Then it is rounded once to its dtype.
    allowed = bound + (exact.abs() + bound) * info.eps / 2 + info.smallest_normal * info.eps
    wrong = ~((result.double() - exact).abs() <= allowed)
    if wrong.any():
        where = tuple(int(i) for i in wrong.nonzero()[0])
        raise AssertionError(
            f"{name} of {drawn}: {int(wrong.sum())} of {wrong.numel()} elements are off by more than rounding, "
            f"first at {where}: {result[where].item()!r} instead of {exact[where].item()!r} ± "
            f"{allowed[where].item():.2g}"
        )


def _unit(dtype: torch.dtype) -> float:
    """One rounding of the arithmetic; in float64 the exact result is rounded as often."""
    wide = torch.promote_types(dtype, torch.float32)
    return torch.finfo(wide).eps / 2 * (2 if wide == torch.float64 else 1)


def _bounds(scan: Scan, gates: Tensor, tokens: Tensor, states: Tensor, d_states: Tensor) -> tuple[Tensor, ...]:
    """Bounds on the errors of states, final states and gradients of tokens, from absolute values: as in budget.py.

    Of `total[t] = gates[t] * total[t-1] + tokens[t]` all but the token has passed a gate: two roundings.
    """
    T = tokens.shape[scan.drawn.dim]
    level, unit = math.log2(T + 1) + 4, _unit(scan.drawn.dtype)
    slope = unit / (1 - (2 * T + level) * unit)
    total, final_total = scan.forward(gates, tokens)
    counted, final_counted = scan.forward(gates, 2 * (total - tokens).clamp_min(0))
    flow, _ = scan.backward(gates, states, d_states)
    flow_counted, _ = scan.backward(gates, states, 2 * (flow - d_states).clamp_min(0))
    pairs = ((total, counted), (final_total, final_counted), (flow, flow_counted))
    return tuple(slope * (count + level * size) for size, count in pairs)


class Load:
    """Work on a second stream that holds now a corner and now all of the GPU."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream(priority=-1)
        self.buffer = torch.ones(2**25, device=ON)
        self.under_way: list[torch.cuda.Event] = []

    def more(self, choose: random.Random) -> None:
        """A little more of it; waits where much is under way."""
        if len(self.under_way) > 8:
            self.under_way.pop(0).synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(choose.randint(1, 8)):
                if choose.random() < 0.3:
                    torch.cuda._sleep(choose.randint(1, 10**6))
                else:
                    self.buffer[: 2 ** choose.randint(8, 25)].sin_()
            self.under_way.append(torch.cuda.Event())
            self.under_way[-1].record()


@contextmanager
def _at_most(seconds: float, what: str) -> Iterator[None]:
    """Ends the process with a sentence where its body takes longer: nothing else ends a kernel that waits for ever."""

    def give_up() -> None:
        print(
            f"expected {what} to end within {seconds:g} seconds, but it has not: its programs wait for each other, or "
            "this machine is slow and --seconds should be more.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HUNG)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_right(number: int, seconds: float, load: Load | None) -> bool:
    """Whether every output of one launch is right, which is drawn from its number; says what is not."""
    choose = random.Random(number)
    drawn = Drawn.of(choose)
    with _at_most(seconds, f"launch {number}, {drawn},"):
        if load is not None:
            load.more(choose)
        try:
            (check_both if drawn.both else check)(drawn, Data.of(drawn, choose))
        except AssertionError as error:
            print(f"launch {number}: {error}", file=sys.stderr)
            return False
    return True


def main(arguments: list[str]) -> int:
    """Launches what was asked for; 0 where every output was right."""
    parser = argparse.ArgumentParser(prog="python -m tests.scan.stress", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--launches", type=int, default=300, help="how many")
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first one, from which all of it is drawn"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="how long one may take, its compilation included")
    options = parser.parse_args(arguments)
    if not ON_GPU and not INTERPRETING:
        print("expected a GPU, or TRITON_INTERPRET=1: kernels run nowhere else.", file=sys.stderr)
        return 2
    if INTERPRETING:
        from tests.interpreter import quicken

        quicken()
    # Outputs begin as NaN.
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    load = Load() if ON_GPU else None
    done = 0
    try:
        while done < options.launches:
            if not _is_right(options.first + done, options.seconds, load):
                return 1
            done += 1
            if done % 500 == 0:
                print(f"{done} of {options.launches} launches: every output was right so far.", flush=True)
    except KeyboardInterrupt:
        print(f"Interrupted after {done} of {options.launches} launches: every output was right.", flush=True)
        return INTERRUPTED
    print(f"{options.launches} launches: every output was right.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
