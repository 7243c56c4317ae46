"""Triton's language in the interpreter: tensors and their types made once, and nothing looked up twice.

For every value the interpreter makes a type anew, with its shape as constants of the language, each of which has a type
of its own; for every operator it asks both operands for shapes and dtypes one dimension at a time, mostly to find that
they are the same. That is most of its time. Here types are made once, and two operands of one type are known to agree.
What is left to decide is decided by Triton's own functions.
"""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_PLAIN = {core.tensor, core.dtype, core.pointer_type, core.block_type, int, bool, float, str, NoneType}

_unwrap_always = core._unwrap_if_constexpr
_make_block_type = core.block_type.__init__
_equal = {kind: kind.__eq__ for kind in (core.dtype, core.pointer_type, core.block_type)}
_agree_always = TritonSemantic.binary_op_type_checking_impl
_broadcast_always = TritonSemantic.broadcast_impl_value
# How large a whole number may be for either; of unsigned dtypes it may not be negative, which is left to Triton.
_BITS_OF_FLOATS = {"fp16": 11, "bf16": 8, "fp32": 24, "fp64": 53}
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, **_BITS_OF_FLOATS}
_splat_always = interpreter.InterpreterBuilder.create_splat
_convert_always = interpreter._convert_float
_SCALARS = [kind for kind in vars(tl).values() if type(kind) is core.dtype and kind.name != "void"]
_BYTES = {kind.name: max(1, kind.primitive_bitwidth // 8) for kind in _SCALARS}
_builtin_code = core.builtin(lambda: None).__code__


def quicken() -> None:
    """Put all of it in place."""
    core._unwrap_if_constexpr = _unwrap
    core.block_type.__new__ = _block_type  # type: ignore[method-assign, assignment]
    core.block_type.__init__ = lambda self, *_, **__: None  # type: ignore[method-assign]
    for kind, equal in _equal.items():
        kind.__eq__ = lambda self, other, equal=equal: self is other or equal(self, other)  # type: ignore[method-assign, assignment]
    core.block_type.with_element_ty = _with_element_ty  # type: ignore[method-assign]
    core.block_type.to_ir = lambda self, builder: self  # type: ignore[method-assign, assignment, return-value]
    core.tensor.__init__ = _tensor  # type: ignore[method-assign]
    TritonSemantic.binary_op_type_checking_impl = _agree
    TritonSemantic.broadcast_impl_value = _broadcast
    interpreter._patch_attr = _patch_attr
    interpreter._validate_np_data_size = _fits
    interpreter._convert_float = _convert_float
    interpreter.InterpreterBuilder.create_splat = _splat  # type: ignore[method-assign]


def _unwrap(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    return value.value if kind is core.constexpr else _unwrap_always(value)


_block_types: dict[tuple[str, tuple[int, ...]], core.block_type] = {}


def _block_type(kind: Any, element_ty: Any, shape: Any) -> core.block_type:
    """The type of blocks of a shape, of which there is one: pointers have what they point to in their names."""
    # Lists, and the language's own tuples, of numbers or of constants: no other shape is valid.
    values = shape.values if type(shape) is core.tuple else shape
    key = element_ty.name, tuple(map(_unwrap, values)) if type(values) is list else ()
    found = _block_types.get(key)
    if found is None:
        found = object.__new__(kind)
        _make_block_type(found, element_ty, shape)
        _block_types[key] = found
    return found


def _with_element_ty(self: Any, scalar_ty: Any) -> core.block_type:
    others = self.__dict__.setdefault("_others", {})
    if scalar_ty.name not in others:
        others[scalar_ty.name] = core.block_type(scalar_ty, self.shape)
    return others[scalar_ty.name]


def _tensor(self: Any, handle: Any, type: Any) -> None:
    """What Triton's own constructor does, with the attributes that follow from the type kept there."""
    known = type.__dict__.get("_of_tensor")
    if known is None:
        shape = type.shape if type.is_block() else ()
        constants = core.tuple([core.constexpr(n) for n in shape])
        known = type._of_tensor = core.constexpr(math.prod(shape)), constants, type.scalar
    self.handle, self.type = handle, type
    self.numel, self.shape, self.dtype = known


def _agree(
    self: Any,
    lhs: Any,
    rhs: Any,
    allow_lhs_ptr: bool = False,
    allow_rhs_ptr: bool = False,
    arithmetic_check: bool = True,
    div_or_mod: bool = False,
) -> tuple[Any, Any]:
    """Two of one dtype, or one and a number that its dtype can hold: neither is converted, and one may have to grow.

    A division converts some dtypes, and pointers are not allowed everywhere.
    """
    if arithmetic_check and not div_or_mod:
        if type(lhs) is type(rhs) is core.tensor and lhs.dtype is rhs.dtype and not lhs.dtype.is_ptr():
            return _broadcast(self, lhs, rhs)
        if type(lhs) is core.tensor and _holds(lhs.dtype, rhs):
            return _broadcast(self, lhs, self.scalar_constant(rhs, lhs.dtype))
        if type(rhs) is core.tensor and _holds(rhs.dtype, lhs):
            return _broadcast(self, self.scalar_constant(lhs, rhs.dtype), rhs)
    return _agree_always(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)


def _holds(dtype: Any, number: Any) -> bool:
    """Whether a number takes the dtype of the tensor beside it: of the same kind, or whole beside any but bool."""
    if type(number) is int:
        bits = _BITS.get(dtype.name)
        return bits is not None and -(2**bits) <= number < 2**bits
    return type(number) is float and dtype.name in _BITS_OF_FLOATS


def _broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    a, b = lhs.type, rhs.type
    if a is b:
        return lhs, rhs
    if type(a) is type(b) is core.block_type and len(a.shape) == len(b.shape):
        pairs = list(zip(a.shape.values, b.shape.values, strict=True))
        if all(m == n or m == 1 or n == 1 for m, n in pairs):
            shape = [n if m == 1 else m for m, n in pairs]
            return _grown(self, lhs, shape), _grown(self, rhs, shape)
    return _broadcast_always(self, lhs, rhs)


def _grown(semantic: Any, block: Any, shape: list[int]) -> Any:
    if block.type.shape.values == shape:
        return block
    grown = semantic.builder.create_broadcast(block.handle, shape)
    return core.tensor(grown, core.block_type(block.dtype, shape))


def _patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Has a builtin called without what Triton's wrapper checks: that it is given the semantics, which it is here."""
    builtin = member.__wrapped__ if getattr(member, "__code__", None) is _builtin_code else member
    semantic = interpreter.interpreter_semantic

    def call(*arguments: Any, **keywords: Any) -> Any:
        keywords["_semantic"] = semantic
        return builtin(*arguments, **keywords)

    scope.set_attr(owner, name, call)


def _fits(values: Any, dtype: Any) -> bool:
    """Whether elements are no wider than those of a dtype; a pointer takes any."""
    most = _BYTES.get(dtype.name)
    return most is None or values.itemsize <= most


def _splat(self: Any, kind: Any, scalar: Any) -> Any:
    if type(scalar.dtype) is core.block_type:
        return _splat_always(self, kind, scalar)
    values = np.empty(kind.shape.values, interpreter._get_np_dtype(scalar.dtype))
    values[...] = scalar.data
    return interpreter.TensorHandle(values, scalar.dtype)


def _convert_float(values: Any, source: Any, result: Any, rounding: Any) -> Any:
    """Between bfloat16 and float32, which have one exponent: half of the bits are cut off, or are zero.

    Of numbers below the normal range Triton's way keeps less than that; it is asked where there are any.
    """
    names = source.name, result.name
    if rounding is None and names in (("fp32", "bf16"), ("bf16", "fp32")):
        words = np.ascontiguousarray(values).view(f"uint{source.primitive_bitwidth}")
        exponents, ones = words >> source.fp_mantissa_width & 0xFF, words << 1
        if not ((exponents == 0) & (ones != 0)).any():
            return (words >> 16).astype(np.uint16) if names[0] == "fp32" else words.astype(np.uint32) << 16
    return _convert_always(values, source, result, rounding)
