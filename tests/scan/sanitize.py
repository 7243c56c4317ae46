"""Every kernel once on small tensors, for compute-sanitizer to watch: `python -m tests.scan.sanitize`.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python -m tests.scan.sanitize

The same with `--tool racecheck` and `--tool initcheck`. Without PyTorch's cache every tensor is an allocation of
exactly its bytes, so that a read one element behind it shows; inputs are written whole, and outputs are not filled
beforehand, so that a read of what nobody wrote shows. All outputs are compared with the float64 scan.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scan import launch, tuning
from tests.conftest import INTERPRETING, ON_GPU
from tests.scan.budget import assert_within, expected
from tests.scan.calls import Call, answers, draw_all
from tests.scan.cases import DTYPES, Case, Inputs
from tests.scan.runs import Outputs

ON = torch.device("cuda" if ON_GPU else "cpu")
_F16, _BF16, _F32, _F64 = DTYPES
_C64, _C128 = torch.complex64, torch.complex128


def _plain() -> Iterator[Case]:
    """Both layouts, ascending and descending, packed or not: one step, part of a tile, several tiles.

    Dtypes, rows, states and logarithms take turns, so that each meets each layout and direction.
    """
    axes = itertools.product((1, 35, 4104), (-1, -2), (False, True), (False, True))
    for n, (T, dim, reverse, packed) in enumerate(axes):
        lengths = (T // 3, 0, 1, T // 2) if T > 1 else (0, 1, 0)
        yield Case(
            T, DTYPES[(n + n // 4) % 4], rows=((2,), (5,), (2, 8))[n % 3], dim=dim, reverse=reverse,
            lengths=lengths if packed else None, initial=n % 3 != 1, log=n % 5 in (1, 3),
        )  # fmt: skip


def _complex() -> Iterator[Case]:
    """The same of complex numbers: an orthogonal array, so that every two of what is asked meet in all ways."""
    for a, b, c in itertools.product((False, True), repeat=3):
        T = 514 if a ^ b ^ c else 21
        yield Case(
            T, _C128 if b ^ c else _C64, rows=(2, 5), dim=-2 if a else -1, reverse=b,
            lengths=(T // 3, 0, 1, T // 2) if c else None, initial=a ^ b, log=a ^ c,
        )  # fmt: skip


_EVERYWHERE = {"gates_layout": "offset", "tokens_layout": "offset", "upstream_layout": "offset"}
# Tiles so small that short rows are shared by programs, in windows of two tiles; of one warp in strips.
_SHARED = tuning.Tile(1, 8, 4, 4, window=2, run=3)
_SHARED_NARROW = tuning.Tile(1, 8, 8, 1, window=2)
_SHARED_WIDE = tuning.Tile(1, 8, 2, 1, window=2, run=2)
_SHARED_CHANNELS = tuning.Tile(2, 8, 4, 4, window=2)

CALLS = [
    *map(Call, _plain()),
    # One tile filled; rows that end on a group, on a tile, and begin anywhere in a line of memory.
    Call(Case(128, rows=(35,), initial=True)),
    Call(Case(4096, _BF16, rows=(2,), reverse=True)),
    Call(Case(8192, rows=(2,), initial=True, upstream="states")),
    Call(Case(2054, rows=(3,), initial=True, reverse=True)),
    Call(Case(2056, _BF16, rows=(3,), reverse=True)),
    Call(Case(613, lengths=(300, 0, 313), rows=(2, 3), upstream="final")),
    Call(Case(2048, _BF16, lengths=(1000, 600), rows=(2,), initial=True)),
    # Places in memory: rows apart, every second element, one step, row or element for all, axes that changed places.
    Call(Case(35, rows=(2, 3), gates_layout="offset", tokens_layout="gaps", upstream_layout="expanded")),
    Call(Case(36, _BF16, rows=(2, 4), gates_layout="swapped", tokens_layout="swapped", upstream_layout="scalar")),
    Call(Case(40, _F16, rows=(2, 3), dim=-2, gates_layout="strided", tokens_layout="swapped", reverse=True)),
    Call(Case(70, rows=(2, 5), dim=-2, gates_layout="gaps", tokens_layout="gaps", upstream_layout="spread")),
    Call(Case(37, _BF16, rows=(2, 3), lengths=(9, 0, 20), initial=True, **_EVERYWHERE)),
    Call(Case(35, rows=(2, 3), gates_layout="gaps", tokens_layout="turned", upstream_layout="turned", reverse=True)),
    Call(Case(33, _BF16, _F32, rows=(3,), initial=True)),
    # Some outputs alone.
    Call(Case(2060, rows=(3,), reverse=True), final=False),
    Call(Case(37, rows=(2, 5), dim=-2, initial=True, lengths=(9, 20), upstream="states"), final=False),
    Call(Case(37, rows=(3,), initial=True), needs=(True, False, False)),
    Call(Case(37, rows=(3,), dim=-2, initial=True, lengths=(9, 20)), needs=(False, True, True)),
    # Channels last: odd channels enough to have a table of their own, few with loads ahead, many, and the largest tile.
    Call(Case(70, rows=(2, 1025), dim=-2, initial=True)),
    Call(Case(70, _BF16, rows=(2, 1025), dim=-2, reverse=True)),
    Call(Case(300, _BF16, rows=(3, 8), dim=-2, initial=True)),
    Call(Case(65, rows=(2, 1024), dim=-2, reverse=True)),
    Call(Case(65, _BF16, rows=(2, 4096), dim=-2)),
    Call(Case(300, rows=(2, 70), dim=-2, lengths=(40, 0, 200)), tile=tuning.Tile(64, 16, 8, 8)),
    Call(Case(301, _BF16, rows=(2, 1024), dim=-2, lengths=(40, 0, 200), initial=True, reverse=True)),
    Call(Case(1030, rows=(2, 5), dim=-2, initial=True, reverse=True)),
    # Rows shared by programs: small tiles and windows, then what tuning chooses for long rows, whole and not.
    Call(Case(129, rows=(2,), initial=True), tile=_SHARED),
    Call(Case(230, _BF16, rows=(3,), reverse=True, log=True), tile=_SHARED_NARROW),
    Call(Case(128, _F64, rows=(2,), lengths=(16, 0, 17, 90), initial=True, reverse=True), tile=_SHARED_WIDE),
    Call(Case(131, rows=(2, 3), dim=-2, initial=True), tile=_SHARED_CHANNELS),
    Call(Case(96, _F16, rows=(5,), dim=-2, reverse=True, lengths=(32, 0, 33, 20)), tile=_SHARED_CHANNELS),
    Call(Case(18_432, rows=(1,), initial=True)),
    Call(Case(16_391, rows=(2,), lengths=(9000, 0, 7000), initial=True, reverse=True)),
    Call(Case(16_391, _BF16, rows=(2,))),
    # Both directions at once.
    Call(Case(201, rows=(2, 3), initial=True), both=True),
    Call(Case(96, _BF16, rows=(4,), lengths=(37, 0, 53), log=True), both=True),
    Call(Case(40, rows=(2, 3), dim=-2, initial=True), both=True),
    Call(Case(64, _F64, rows=(2,), initial=True), both=True),
    Call(Case(35, rows=(2, 3), gates_layout="turned", tokens_layout="turned", upstream_layout="turned"), both=True),
    # Complex numbers: whole groups, with real ones, apart in memory.
    *map(Call, _complex()),
    Call(Case(64, _C64, rows=(2, 3), initial=True)),
    Call(Case(514, _C64, _F32, rows=(2,), reverse=True)),
    Call(Case(35, _F32, _C64, rows=(2, 5), dim=-2, initial=True)),
    Call(Case(21, _C64, rows=(2, 3), gates_layout="gaps", tokens_layout="strided", upstream_layout="scalar")),
    # Offsets that are invalid lead nowhere.
    Call(Case(40, initial=True), offsets=(0, 4, 2**31 - 1)),
    Call(Case(40, _BF16, dim=-2, reverse=True), offsets=(0, -(2**62), 2**40, 9)),
    Call(Case(131, rows=(2,), initial=True), offsets=(2, 140, 5), tile=_SHARED),
    Call(Case(40, _C64, initial=True), offsets=(0, -3, 2**33)),
]  # fmt: skip


def launched(call: Call, device: torch.device) -> Iterator[tuple[Case, Inputs, Outputs]]:
    """What a call was asked and what came out, of one direction or of both."""
    asked = draw_all(call, device)
    return zip(call.cases, asked, answers(call, asked, {}), strict=True)


def check(call: Call, device: torch.device) -> None:
    """Every output within what rounding explains; NaN everywhere where offsets are invalid."""
    for case, inputs, outputs in launched(call, device):
        if call.offsets is not None:
            for name, output in outputs.items():
                if output is not None and not output.isnan().all():
                    raise AssertionError(f"{name}: not all is NaN, although the offsets are invalid")
            continue
        wanted = expected(case, inputs)
        needed = (*call.needs, call.final)
        asked = dict(zip(("d_gates", "d_tokens", "d_initial_state", "final_state"), needed, strict=True))
        assert_within(outputs, {name: bound for name, bound in wanted.items() if asked.get(name, True)})


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each kernel is launched meanwhile."""
    found: Counter[str] = Counter()
    run = launch._run

    def noted(key: Any, pointers: tuple[Tensor | None, ...], made: launch.Launch) -> None:
        function = getattr(made.kernel, "fn", made.kernel)
        found[f"{function.__module__.rpartition('.')[2]}.{function.__name__}"] += 1
        run(key, pointers, made)

    launch._run = noted
    try:
        yield found
    finally:
        launch._run = run


def main(arguments: list[str]) -> int:
    """Makes the calls that were asked for; 0 where every output was right."""
    parser = argparse.ArgumentParser(prog="python -m tests.scan.sanitize", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--every", type=int, default=1, help="make one call of so many")
    options = parser.parse_args(arguments)
    if not ON_GPU and not INTERPRETING:
        print("expected a GPU, or TRITON_INTERPRET=1: kernels run nowhere else.", file=sys.stderr)
        return 2
    if INTERPRETING:
        from tests.interpreter import quicken

        quicken()
    numbers = range(options.first, len(CALLS), options.every)
    with counted() as launches:
        for number in numbers:
            # Before it is made: what a sanitizer prints belongs to the call above it.
            print(f"{number:3} {CALLS[number]}", flush=True)
            try:
                check(CALLS[number], ON)
            except AssertionError as error:
                print(f"call {number}, {CALLS[number]}: {error}", file=sys.stderr)
                return 1
    by_kernel = ", ".join(f"{name} {count}" for name, count in sorted(launches.items()))
    print(f"{len(numbers)} calls forward and backward, {launches.total()} launches: every output was right.")
    print(f"launches by kernel: {by_kernel}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
