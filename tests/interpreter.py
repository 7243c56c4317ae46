"""Triton's interpreter, several times faster: what it would do once a scalar or for nothing is done once or not at all.

It calls the combine function of an associative scan once a scalar. The replacement applies it log2(n) times to whole
blocks. It is some tens of times faster and, unlike the original, combines in the order of a tree: a combine function
that is not associative shows.

It replaces the language's functions by its own whenever a function calls another. Once a launch is enough.

It computes whether integers overflow, and only in debug mode says so. Here it does both or neither.

It writes down a table of all dtypes whenever it looks one up. Here each is looked up once.

It makes types anew for every value and asks operands for them again and again. `tests/language.py` ends that.

It runs one program after another, so that one which waits for a later one would wait for ever. Here a program whose
wait is in vain (a volatile load of words that are zero, as `scan/kernels/exchange.py` waits for them) lets those which
have not begun run first; where none is left, the launch ends in an exception.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import ScanOps

from tests import language

# The private class is the same in these versions; in any other the slow original stays.
KNOWN_VERSIONS = ("3.6.0", "3.7.1", "3.9.0")

slow_scan = ScanOps.generic_scan
_patch_always = interpreter._patch_lang  # type: ignore[attr-defined]
_of_scalar = functools.cache(interpreter._get_np_dtype)


def quicken(types: bool = True) -> bool:
    """Put all of it in place; False, and nothing is changed, where this Triton is not a known one.

    `types`: also what `tests/language.py` replaces.
    """
    if triton.__version__.split("+")[0] not in KNOWN_VERSIONS:
        return False
    if interpreter._patch_lang is _patch_once:  # type: ignore[attr-defined]
        return True
    ScanOps.generic_scan = tree_scan
    interpreter._patch_lang = _patch_once  # type: ignore[attr-defined]
    interpreter._get_np_dtype = _numpy_dtype
    interpreter.GridExecutor = _Executor  # type: ignore[misc]
    interpreter.InterpreterBuilder.create_masked_load = _load_when_there  # type: ignore[method-assign]
    if types:
        language.quicken()
    _set_options(debug=False, sanitize_overflow=False)
    return True


class _Failed(BaseException):
    """Its cause ends the launch. Triton wraps an `Exception` in another at every call, of waiting programs too."""


class _Programs:
    """A kernel as the executor calls it, once a program: all begin when the last is there, or when waited for."""

    under_way: _Programs | None = None

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.left: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        # What the executor asks a function for.
        self.__globals__, self.__annotations__ = kernel.__globals__, kernel.__annotations__
        self.__name__, self.__signature__ = kernel.__name__, inspect.signature(kernel)

    def __call__(self, **arguments: Any) -> None:
        builder = interpreter.interpreter_builder
        self.left.append((builder.grid_idx, arguments))
        if len(self.left) < math.prod(builder.grid_dim):
            return
        _Programs.under_way = self
        # A program that waits holds some forty calls, and a row may have 128.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 20_000))
        try:
            while self.left:
                self.begin_next()
        except _Failed as failed:
            raise failed.__cause__ or failed from None
        finally:
            sys.setrecursionlimit(limit)
            _Programs.under_way = None
            self.left.clear()

    def begin_next(self) -> None:
        """Runs the earliest program that has not begun, to its end."""
        builder = interpreter.interpreter_builder
        before = builder.grid_idx
        index, arguments = self.left.pop(0)
        builder.set_grid_idx(*index)
        try:
            self.kernel(**arguments)
        except Exception as error:
            raise _Failed from error
        builder.grid_idx = before


class _Executor(interpreter.GridExecutor):
    def __init__(self, fn: Any, *arguments: Any, **keywords: Any) -> None:
        super().__init__(_Programs(fn), *arguments, **keywords)


_load = interpreter.InterpreterBuilder.create_masked_load


def _load_when_there(self: Any, pointers: Any, mask: Any, other: Any, *how: Any) -> Any:
    """A masked load; one that is volatile returns when no word is zero."""
    volatile = how[-1]
    loaded = _load(self, pointers, mask, other, *how)
    while volatile and not loaded.data.all():
        programs = _Programs.under_way
        if programs is None or not programs.left:
            raise RuntimeError("a program waits for one that has ended, or for itself: it would wait for ever")
        programs.begin_next()
        loaded = _load(self, pointers, mask, other, *how)
    return loaded


def _numpy_dtype(kind: Any) -> np.dtype[Any]:
    """NumPy's dtype of a scalar, a pointer, or a block of either."""
    scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
    return np.dtype(np.uint64) if isinstance(scalar, tl.pointer_type) else _of_scalar(scalar)


def waits() -> bool:
    """Whether a program can wait for one that has not begun."""
    return interpreter.GridExecutor is _Executor


@contextmanager
def overflows_raise() -> Iterator[None]:
    """Meanwhile integers that overflow end a launch in an exception."""
    before = interpreter.interpreter_builder.options
    _set_options(debug=True, sanitize_overflow=True)
    try:
        yield
    finally:
        interpreter.interpreter_builder.options = before


def _set_options(**options: bool) -> None:
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, **options)


# Which of the modules `tl` and `tl.core` the launch under way has replaced the functions of.
_patched: set[int] = set()
# Which of both a module knows, by its globals, which live as long as the process.
_modules: dict[int, set[int]] = {}


def _patch_once(function: Any) -> Any:
    """What the interpreter calls before a launch and before every call of another function: the first one counts."""
    modules = _modules.get(id(function.__globals__))
    if modules is None:
        modules = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        _modules[id(function.__globals__)] = modules
    if modules and modules <= _patched:
        return None
    scope = _patch_always(function)
    if hasattr(scope, "restore"):
        _patched.update(modules)
        restore = scope.restore

        def restore_all() -> None:
            _patched.clear()
            restore()

        scope.restore = restore_all
    return scope


def tree_scan(self: Any, operands: Sequence[Any]) -> list[Any]:
    """Inclusive scan along `self.axis` (Kogge and Stone, 1973): after round k an element combines up to 2**k inputs."""
    if any(operand.dtype.is_bf16() for operand in operands):
        # The interpreter keeps bfloat16 as 16-bit integers and would add those without a word.
        raise TypeError("the interpreter cannot combine bfloat16 operands; convert them to float32 before the scan")
    dtypes = [operand.dtype for operand in operands]
    blocks = [operand.handle.data for operand in operands]
    length = blocks[0].shape[self.axis]
    along = [1] * blocks[0].ndim
    along[self.axis] = length
    position = np.arange(length).reshape(along)
    distance = 1
    while distance < length:
        # Whole blocks, because Triton wants powers of two; what wraps around is dropped by the `where` below.
        earlier = [self.to_tensor(np.roll(b, distance, self.axis), t) for b, t in zip(blocks, dtypes, strict=True)]
        later = [self.to_tensor(b, t) for b, t in zip(blocks, dtypes, strict=True)]
        with np.errstate(all="ignore"):
            combined = self.combine_fn.fn(*earlier, *later)
        if len(operands) == 1:
            combined = (combined,)
        values = [c.handle.data if isinstance(c, tl.tensor) else c for c in combined]
        blocks = [
            np.where(position >= distance, value, block).astype(block.dtype)
            for value, block in zip(values, blocks, strict=True)
        ]
        distance *= 2
    return [self.to_tensor(b, t) for b, t in zip(blocks, dtypes, strict=True)]
