"""The quick interpreter against Triton's own: the tree scan, what is replaced once a launch, values of every dtype."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("about Triton's interpreter: set TRITON_INTERPRET=1", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime.interpreter import ScanOps

from scan import tuning
from tests import interpreter
from tests.interpreter import overflows_raise, slow_scan, tree_scan
from tests.scan.calls import Call, answers, draw_all
from tests.scan.cases import Case, bits

pytestmark = pytest.mark.interpreter


@triton.jit
def _right(a1, a2):
    return a2


@triton.jit
def _affine(g1, x1, g2, x2):
    return g1 * g2, g2 * x1 + x2


@triton.jit
def _affine_count(g1, x1, n1, g2, x2, n2):
    return g1 * g2, g2 * x1 + x2, n1 + n2


@triton.jit
def _affine_reset(g1, x1, f1, n1, g2, x2, f2, n2):
    return tl.where(f2, g2, g1 * g2), tl.where(f2, x2, g2 * x1 + x2), f1 | f2, n1 + n2


@triton.jit
def _ends(a1, b1, c1, d1, n1, a2, b2, c2, d2, n2):
    return a1, b2, c1 * c2, tl.maximum(d1, d2), n1


@triton.jit
def _affine_twice(g1, x1, a1, b1, c1, n1, g2, x2, a2, b2, c2, n2):
    return g1 * g2, g2 * x1 + x2, a1 * a2, a2 * b1 + b2, c1, n1 + n2


@triton.jit
def _scan(source, result, operands: tl.constexpr, axis: tl.constexpr, reverse: tl.constexpr):
    """One block of (4, 8, 2); the float32 operands lie one behind the other, the integer one is made here."""
    at = tl.arange(0, 4)[:, None, None] * 16 + tl.arange(0, 8)[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    a = tl.load(source + at)
    b = tl.load(source + 64 + at)
    c = tl.load(source + 128 + at)
    d = tl.load(source + 192 + at)
    e = tl.load(source + 256 + at)
    n = at
    if operands == 1:
        a = tl.associative_scan(a, axis, _right, reverse=reverse)
    elif operands == 2:
        a, b = tl.associative_scan((a, b), axis, _affine, reverse=reverse)
    elif operands == 3:
        a, b, n = tl.associative_scan((a, b, n), axis, _affine_count, reverse=reverse)
    elif operands == 4:
        a, b, flag, n = tl.associative_scan((a, b, c > 1, n), axis, _affine_reset, reverse=reverse)
        c = flag.to(tl.float32)
    elif operands == 5:
        a, b, c, d, n = tl.associative_scan((a, b, c, d, n), axis, _ends, reverse=reverse)
    else:
        a, b, c, d, e, n = tl.associative_scan((a, b, c, d, e, n), axis, _affine_twice, reverse=reverse)
    tl.store(result + at, a)
    tl.store(result + 64 + at, b)
    tl.store(result + 128 + at, c)
    tl.store(result + 192 + at, d)
    tl.store(result + 256 + at, e)
    tl.store(result + 320 + at, n.to(tl.float32))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("operands", [1, 2, 3, 4, 5, 6])
def test_tree_scan_equals_the_slow_scan(operands: int, axis: int, reverse: bool, monkeypatch) -> None:
    # Halves of small integers: every value below is exact in float32, so the order of combination cannot show.
    source = torch.randint(1, 4, (320,)) / 2
    results = {}
    for scan in (slow_scan, tree_scan):
        monkeypatch.setattr(ScanOps, "generic_scan", scan)
        results[scan] = torch.full((384,), float("nan"))
        _scan[(1,)](source, results[scan], operands, axis, reverse)
    assert not results[slow_scan].isnan().any()
    assert torch.equal(results[tree_scan], results[slow_scan])


@triton.jit
def _scan_bfloat16(source, result):
    at = tl.arange(0, 8)
    tl.store(result + at, tl.associative_scan(tl.load(source + at), 0, _right))


def test_bfloat16_operands_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(ScanOps, "generic_scan", tree_scan)
    with pytest.raises(Exception, match="cannot combine bfloat16 operands; convert them to float32"):
        _scan_bfloat16[(1,)](torch.ones(8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16))


@triton.jit
def _doubled(source, at):
    return tl.load(source + at) * 2


@triton.jit
def _largest(source, at):
    return tl.max(_doubled(source, at), 0) + tl.cdiv(tl.num_programs(0), 2)


@triton.jit
def _two_calls_deep(source, result):
    at = tl.arange(0, 8)
    tl.store(result + tl.program_id(0), _largest(source, at + tl.program_id(0)))


def test_functions_are_replaced_once_a_launch_and_put_back(monkeypatch) -> None:
    calls, own = [], interpreter._patch_always
    monkeypatch.setattr(interpreter, "_patch_always", lambda function: calls.append(function) or own(function))
    source, before = torch.arange(10, dtype=torch.int32), (tl.load, tl.tensor.__add__)
    results = []
    for patch in (interpreter._patch_once, interpreter._patch_always):
        monkeypatch.setattr(triton.runtime.interpreter, "_patch_lang", patch)
        calls.clear()
        results.append(torch.zeros(3, dtype=torch.int32))
        _two_calls_deep[(3,)](source, results[-1])
        assert (tl.load, tl.tensor.__add__) == before, "what a launch replaced is there again"
        if patch is interpreter._patch_once:
            # Its own module `tl`, and `tl.core` for the functions of Triton's standard library.
            assert len(calls) <= 3 and not interpreter._patched
    assert len(calls) > 6
    assert results[0].tolist() == results[1].tolist() == [16, 18, 20]


def test_a_failed_launch_leaves_nothing_replaced() -> None:
    before = tl.load
    with pytest.raises(Exception, match="cannot combine bfloat16 operands"):
        _scan_bfloat16[(1,)](torch.ones(8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16))
    assert tl.load is before and not interpreter._patched


@triton.jit
def _square(source, result):
    tl.store(result, tl.load(source) * tl.load(source))


def test_integers_that_overflow_are_noticed_where_asked() -> None:
    source, result = torch.tensor([2**16], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    _square[(1,)](source, result)
    assert result.item() == 0
    with overflows_raise(), pytest.raises(Exception, match="int32 overflow detected"):
        _square[(1,)](source, result)
    _square[(1,)](source, result)


def test_dtypes_are_those_of_the_interpreter() -> None:
    own = interpreter._of_scalar.__wrapped__
    scalars = (tl.int1, tl.int8, tl.uint8, tl.int16, tl.int32, tl.uint32, tl.int64, tl.uint64, tl.float16, tl.bfloat16)
    for scalar in (*scalars, tl.float32, tl.float64):
        for kind in (scalar, tl.pointer_type(scalar)):
            for each in (kind, tl.block_type(kind, [2, 4])):
                assert interpreter._numpy_dtype(each) == own(each)


@triton.jit
def _wait_for(words_ptr, ahead, out_ptr):
    """Publishes a word, and waits for that of the program `ahead` of this one."""
    own = tl.program_id(0)
    tl.store(words_ptr + own, own + 1)
    other = (own + ahead) % tl.num_programs(0)
    word = tl.load(words_ptr + other, mask=ahead > 0, other=1, volatile=True)
    while word == 0:
        word = tl.load(words_ptr + other, mask=ahead > 0, other=1, volatile=True)
    tl.store(out_ptr + own, word)


@pytest.mark.parametrize(("programs", "ahead"), [(5, 1), (5, 2), (5, 4), (128, 1)])
def test_a_program_waits_for_a_later_one(programs: int, ahead: int) -> None:
    words, out = torch.zeros(programs, dtype=torch.int64), torch.zeros(programs, dtype=torch.int64)
    _wait_for[(programs,)](words, ahead, out)
    assert out.tolist() == [(own + ahead) % programs + 1 for own in range(programs)]


@triton.jit
def _wait_for_nobody(words_ptr):
    while tl.load(words_ptr, mask=tl.program_id(0) >= 0, other=1, volatile=True) == 0:
        pass


def test_a_program_that_would_wait_for_ever_ends_the_launch() -> None:
    with pytest.raises(Exception, match="it would wait for ever"):
        _wait_for_nobody[(100,)](torch.zeros(1, dtype=torch.int64))
    # The next launch is one as any.
    test_a_program_waits_for_a_later_one(5, 1)


DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.int16, torch.int8,
    torch.uint8,
)  # fmt: skip


@triton.jit
def _values(a_ptr, b_ptr, out_ptr, count, whole: tl.constexpr, bfloat16: tl.constexpr):
    """Blocks and scalars beside one another, of one dtype and of others, in every operator of the kernels."""
    rows, columns = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    at = rows * 8 + columns
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    column, row = tl.load(a_ptr + rows), tl.load(b_ptr + columns)
    scalar = tl.load(b_ptr)
    if bfloat16:  # of which the interpreter has no constants
        a, b, column, row, scalar = a.to(tl.float32), b.to(tl.float32), column.to(tl.float32), row.to(tl.float32), 1.5
    out = out_ptr + at
    tl.store(out, a + b)
    tl.store(out + 32, a * column - row * b)
    tl.store(out + 64, 2 * a + b * 3 - (column + scalar))
    tl.store(out + 96, tl.where(a < b, a, b) + tl.where(columns >= 3, a, 0))
    tl.store(
        out + 128, tl.maximum(a, column) + tl.minimum(b, row) + tl.where((a > scalar) & (rows != 1) | (b == a), 1, 0)
    )
    tl.store(out + 160, a.to(tl.float32) * 0.5 + b.to(tl.int32) + at)
    tl.store(out + 192, tl.load(out_ptr + at, mask=(at < count) & (columns != 2), other=0) + tl.sum(b, 1)[:, None])
    tl.store(out + 224, (at + count) // 3 + (at - count) % 5 + tl.cdiv(count, 4) + (at << 2 | 1) - (at >> 1))
    tl.store(out + 256, a / b if not whole else a // b)
    tl.store(out + 288, a + at.to(tl.int64) if whole else tl.exp(column.to(tl.float32)) * tl.exp2(-row.to(tl.float32)))
    tl.store(out + 320, tl.reshape(tl.trans(a), (4, 8)) + (a > 1))
    tl.store(out + 352, tl.max(a, 0)[None, :] + tl.zeros_like(b) + tl.full((4, 8), 1, tl.int32))


@triton.jit
def _pointers_are_added(a_ptr, b_ptr):
    tl.store(a_ptr + b_ptr, 0)


@triton.jit
def _shapes_do_not_agree(a_ptr, b_ptr):
    tl.store(a_ptr + tl.arange(0, 4), tl.arange(0, 4) + tl.arange(0, 8))


@triton.jit
def _number_is_too_large(a_ptr, b_ptr):
    tl.store(a_ptr, tl.load(b_ptr).to(tl.int8) + 128)


@triton.jit
def _number_is_negative(a_ptr, b_ptr):
    tl.store(a_ptr, tl.load(b_ptr).to(tl.uint8) * -1)


@triton.jit
def _pointer_is_multiplied(a_ptr, b_ptr):
    tl.store(a_ptr, a_ptr * a_ptr)


@triton.jit
def _shape_is_no_power_of_two(a_ptr, b_ptr):
    tl.store(a_ptr, tl.sum(tl.zeros((3,), tl.int32), 0))


REFUSED = (
    _pointers_are_added, _shapes_do_not_agree, _number_is_too_large, _number_is_negative, _pointer_is_multiplied,
    _shape_is_no_power_of_two,
)  # fmt: skip
# Kernels of every module, with few steps.
CALLS = [
    Call(Case(37, torch.float32, rows=(3,), initial=True)),
    Call(Case(70, torch.bfloat16, rows=(2,), lengths=(9, 0, 33, 20), log=True, initial=True)),
    Call(Case(21, torch.float16, torch.float32, rows=(2, 9), dim=-2, reverse=True)),
    Call(Case(33, torch.float64, rows=(2,), initial=True), both=True),
    Call(Case(24, torch.complex64, rows=(2,), lengths=(3, 0, 21), initial=True)),
    Call(Case(140, torch.float32, rows=(1,), lengths=(100, 40)), tile=tuning.Tile(1, 8, 4, 1, window=2)),
]


def _results() -> dict[str, object]:
    """Bits of every dtype's values and of scans, and what is said of what is refused."""
    torch.manual_seed(0)
    found: dict[str, object] = {}
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-41, 3e38])
    for dtype in DTYPES:
        whole = not dtype.is_floating_point
        a, b = (torch.randint(1, 9, (32,)).to(dtype) if whole else torch.randn(32).to(dtype) for _ in range(2))
        if not whole:
            a[:8] = odd.to(dtype)
        for to in (dtype, torch.float32):
            out = torch.zeros(384, dtype=to)
            _values[(1,)](a, b, out, 20, whole, dtype == torch.bfloat16)
            found[f"{dtype} to {to}"] = bits(out)
    for kernel in REFUSED:
        try:
            kernel[(1,)](torch.ones(8), torch.ones(8))
        except Exception as error:
            found[kernel.fn.__name__] = f"{error!r} {error.__cause__!r}"
    for call in CALLS:
        for outputs in answers(call, draw_all(call, torch.device("cpu")), {}):
            found |= {f"{call} {name}": bits(value) for name, value in outputs.items() if value is not None}
    return found


@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning")
def test_quick_types_change_no_bit_and_no_refusal() -> None:
    script = (
        "import sys, torch; from tests import interpreter; interpreter.quicken(types=False);"
        "from tests.test_interpreter import _results; torch.save(_results(), sys.stdout.buffer)"
    )
    root = Path(__file__).resolve().parents[1]
    slow = subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=root, stdout=subprocess.PIPE, check=True)
    wanted, got = torch.load(io.BytesIO(slow.stdout)), _results()
    assert wanted.keys() == got.keys() and set(got) >= {kernel.fn.__name__ for kernel in REFUSED}
    for name, value in wanted.items():
        assert torch.equal(got[name], value) if isinstance(value, torch.Tensor) else got[name] == value, name


def test_types_are_quick_here() -> None:
    assert tl.block_type(tl.float32, [2, 4]) is tl.block_type(tl.float32, [tl.constexpr(2), 4])
    assert tl.block_type(tl.float32, [2, 4]) != tl.block_type(tl.float32, [4, 2])
    assert tl.block_type(tl.pointer_type(tl.int8), [2]) != tl.block_type(tl.pointer_type(tl.uint8), [2])
