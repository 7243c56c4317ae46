"""The operator boundary: one scan as an autograd.Function for eager calls and as a registered operator for the rest.

Eager calls take the Function: it is cheaper, and the only form whose forward-mode derivative is right. Calls that are
traced (compile, export, tensor subclasses, dispatch modes) take `torch.ops.linear_scan.scan`. Both run the same code:
`launch` on CUDA, or on any device under `TRITON_INTERPRET=1`; `cpu` elsewhere.

First derivatives run the fused backward. Wherever a derivative must itself be differentiable or batched, it is written
as scans and elementwise operations (`_differentiable_backward`), which differentiate to any order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from scan import cpu, launch
from scan import repeat as repeated
from scan.packing import shift_states

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_PLAIN = (Tensor, torch.nn.Parameter)
_are_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_NO_FORWARD_MODE = (
    "expected an eager call under forward-mode differentiation, but the scan is being traced by torch.compile or a "
    "tensor subclass: compute forward-mode derivatives outside the compiled function."
)


def scan(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dim: int = -1,
    reverse: bool = False,
    log_gates: bool = False,
    want_final: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """States and, if wanted, the final state of checked arguments, differentiable."""
    if cu_seqlens is not None and not torch.compiler.is_compiling():
        cu_seqlens = alive(cu_seqlens)
    if is_traced((gates, tokens, initial_state)):
        refuse_forward_mode()
        if _is_distributed(gates) or _is_distributed(tokens):
            from scan import sharding  # noqa: F401  registers the rule for DTensors, also while a compiler traces this
        return _operator(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)
    if _is_batched(gates) or _is_batched(tokens) or (initial_state is not None and _is_batched(initial_state)):
        return _operator(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)
    if _is_differentiated(gates, tokens, initial_state):
        if torch._C._are_functorch_transforms_active():
            return _Scan.apply(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)
        return _apply(
            alive(gates), alive(tokens), None if initial_state is None else alive(initial_state),
            cu_seqlens, dim, reverse, log_gates, want_final,
        )  # fmt: skip
    return _forward(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)


def _forward(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool,
) -> tuple[Tensor, Tensor | None]:
    if tokens.is_cuda and initial_state is None and cu_seqlens is None:
        return repeated.first(gates, tokens, repeated.Options(dim, bool(reverse), bool(log_gates), want_final))
    return implementation(tokens).forward(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)


def repeat(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int = -1,
    reverse: bool = False,
    log_gates: bool = False,
    want_final: bool = True,
) -> tuple[Tensor, Tensor | None] | None:
    """`scan` of unchecked arguments on a GPU where nothing is traced and a call of their kind is known; else None."""
    if initial_state is not None or cu_seqlens is not None or not is_repeatable(gates, tokens, dim, reverse, log_gates):
        return None
    call = repeated.known(gates, tokens, (dim, reverse, log_gates, want_final))
    if call is None:
        return None
    if torch.is_grad_enabled() and (gates.requires_grad or tokens.requires_grad):
        return _apply_repeat(gates, tokens, call)
    return repeated.forward(call, gates, tokens)


def is_repeatable(gates: Tensor, tokens: Tensor, dim: int, reverse: bool, log_gates: bool) -> bool:
    """Whether unchecked arguments are of the kind that `repeat.py` takes: on a GPU, and nothing is traced."""
    return not (
        torch.compiler.is_compiling()
        or type(gates) not in _PLAIN
        or type(tokens) not in _PLAIN
        or not tokens.is_cuda
        or type(dim) is not int
        or type(reverse) is not bool
        or type(log_gates) is not bool
        or _dispatch_modes() > 0
        or _are_transforms_active()
        or forward_ad._current_level >= 0
    )


def is_plain(gates: Tensor, tokens: Tensor) -> bool:
    """Whether unchecked arguments are tensors on a GPU and nothing else."""
    return type(gates) in _PLAIN and type(tokens) in _PLAIN and tokens.is_cuda


def _operator(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool,
) -> tuple[Tensor, Tensor | None]:
    """The registered operator, which always returns two tensors."""
    states, final_state = torch.ops.linear_scan.scan(
        gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final
    )
    return states, final_state if want_final else None


def implementation(tensor: Tensor) -> ModuleType:
    return launch if is_launched(tensor) else cpu


def is_launched(tensor: Tensor) -> bool:
    """Whether scans of a tensor are kernels."""
    return tensor.is_cuda or _INTERPRETED


def is_traced(tensors: Iterable[Tensor | None]) -> bool:
    """Whether a call with these tensors takes the registered operator."""
    return (
        torch.compiler.is_compiling()
        or any(t is not None and type(t) not in _PLAIN for t in tensors)
        or torch._C._len_torch_dispatch_stack() > 0
    )


def is_apart(tensor: Tensor) -> bool:
    """Whether a scan of a tensor takes a way of its own: a transform, forward mode, shards."""
    return _is_distributed(tensor) or (
        not torch.compiler.is_compiling()
        and (
            torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0
            or _is_batched(tensor)
        )
    )


def refuse_forward_mode() -> None:
    """Raises where a traced call would lose tangents."""
    if torch.autograd.forward_ad._current_level >= 0:
        raise RuntimeError(_NO_FORWARD_MODE)


def _is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, told without importing what that takes."""
    return type(tensor).__name__ == "DTensor"


# What `autograd.grad(is_grads_batched=True)` and vectorised Jacobians pass; the dispatcher loops over the entries.
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]


def _is_differentiated(gates: Tensor, tokens: Tensor, initial_state: Tensor | None) -> bool:
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and (
        gates.requires_grad or tokens.requires_grad or (initial_state is not None and initial_state.requires_grad)
    )


class _Scan(torch.autograd.Function):
    """The scan of eager calls."""

    @staticmethod
    def forward(
        gates: Tensor,
        tokens: Tensor,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
        dim: int,
        reverse: bool,
        log_gates: bool,
        want_final: bool,
    ) -> tuple[Tensor, Tensor | None]:
        return _forward(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> None:
        gates, tokens, initial_state, cu_seqlens, ctx.dim, ctx.reverse, ctx.log_gates, ctx.want_final = inputs
        ctx.tokens_dtype = tokens.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, output[0], initial_state, cu_seqlens)
        ctx.save_for_forward(gates, output[0], initial_state, cu_seqlens)

    @staticmethod
    def backward(ctx: Any, d_states: Tensor | None, d_final_state: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, states, initial_state, cu_seqlens = ctx.saved_tensors
        if d_states is None and d_final_state is None:
            return (None,) * 8
        run = backward_for(d_states, d_final_state) or implementation(gates).backward
        d_gates, d_tokens, d_initial_state = run(
            gates, states, initial_state, cu_seqlens, d_states, d_final_state, ctx.tokens_dtype,
            ctx.dim, ctx.reverse, ctx.log_gates, tuple(ctx.needs_input_grad[:3]),
        )  # fmt: skip
        return d_gates, d_tokens, d_initial_state, None, None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, gates_t: Tensor | None, tokens_t: Tensor | None, initial_t: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor | None]:
        gates, states, initial_state, cu_seqlens = ctx.saved_tensors
        operands = (gates, states, initial_state, gates_t, tokens_t, initial_t)
        if not torch._C._are_functorch_transforms_active():
            return _tangents(ctx, cu_seqlens, *operands)
        # PyTorch switches forward mode off in here, and with it that of the transforms outside this one, whose
        # tangents would silently be those of a constant: switch it on again for operands without this level's own.
        with torch.autograd.forward_ad._set_fwd_grad_enabled(True):
            primal = [None if t is None else torch.autograd.forward_ad.unpack_dual(t).primal for t in operands]
            return _tangents(ctx, cu_seqlens, *primal)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        gates: Tensor,
        tokens: Tensor,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
        dim: int,
        reverse: bool,
        log_gates: bool,
        want_final: bool,
    ) -> tuple[tuple[Tensor, Tensor | None], tuple[int, int | None]]:
        if in_dims[3] is not None:
            raise ValueError(
                "expected one cu_seqlens for all entries under vmap, but it came batched: "
                "loop over the batch, or pack all entries along time."
            )
        packed = cu_seqlens is not None
        gates = _batch_first(gates, in_dims[0], info.batch_size, 0)
        tokens = _batch_first(tokens, in_dims[1], info.batch_size, 0)
        if initial_state is not None:
            # Rows lie behind the sequences of a packed state.
            initial_state = _batch_first(initial_state, in_dims[2], info.batch_size, int(packed))
        output = scan(gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final)
        return output, (0, int(packed) if want_final else None)


def backward_for(d_states: Tensor | None, d_final_state: Tensor | None) -> Callable[..., Any] | None:
    """What computes gradients here; None where an eager first derivative is all that is asked for."""
    if torch.compiler.is_compiling():  # compiled autograd
        return _traced_backward
    if (
        torch.is_grad_enabled()
        or _are_transforms_active()
        # Inside a dual level what was saved, or what arrives, may carry tangents.
        or forward_ad._current_level >= 0
        or (d_states is not None and _is_batched(d_states))
        or (d_final_state is not None and _is_batched(d_final_state))
    ):
        return _differentiable_backward
    return None


class _Repeat(torch.autograd.Function):
    """`_Scan` of an eager call that is known: fewer arguments, and no forward mode."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, tokens: Tensor, call: repeated.Call) -> tuple[Tensor, Tensor | None]:
        states, final_state = repeated.forward(call, gates, tokens)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, states)
        return states, final_state

    @staticmethod
    def backward(
        ctx: Any, d_states: Tensor | None, d_final_state: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        gates, states = ctx.saved_tensors
        if d_states is None and d_final_state is None:
            return None, None, None
        call, needs = ctx.call, ctx.needs_input_grad[:2]
        run = backward_for(d_states, d_final_state)
        if run is None and d_states is not None and d_final_state is None:
            d_gates, d_tokens = repeated.backward(call, gates, states, d_states, needs)
            return d_gates, d_tokens, None
        dim, reverse, log_gates, _ = call.options
        d_gates, d_tokens, _ = (run or launch.backward)(
            gates, states, None, None, d_states, d_final_state, call.tokens_dtype, dim, reverse, log_gates,
            (*needs, False),
        )  # fmt: skip
        return d_gates, d_tokens, None


# `_Scan.apply` where no transform is active, without its look at the signature of `forward`, which takes longer than
# all else in a call of a small scan.
_apply = super(torch.autograd.Function, _Scan).apply  # pyright: ignore[reportAttributeAccessIssue]
_apply_repeat = super(torch.autograd.Function, _Repeat).apply  # pyright: ignore[reportAttributeAccessIssue]
alive = torch._C._functorch.unwrap_if_dead  # pyright: ignore[reportAttributeAccessIssue]


def _tangents(
    ctx: Any,
    cu_seqlens: Tensor | None,
    gates: Any,
    states: Any,
    initial_state: Tensor | None,
    gates_t: Tensor | None,
    tokens_t: Tensor | None,
    initial_t: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """`h' = g h'[t-1] + (x' + g' h[t-1])`: the same recurrence with other tokens."""
    dtype = cpu.accumulation_dtype(gates.dtype, ctx.tokens_dtype)
    source = torch.zeros_like(states, dtype=dtype) if tokens_t is None else tokens_t.to(dtype)
    if gates_t is not None:
        # The initial state may be wider than what states are accumulated in.
        before = shift_states(states, initial_state, cu_seqlens, ctx.dim, ctx.reverse).to(dtype)
        source = source + _gate_tangent(gates, gates_t, dtype, ctx.log_gates) * before
    states_t, final_t = scan(gates, source, initial_t, cu_seqlens, ctx.dim, ctx.reverse, ctx.log_gates)
    return states_t.to(states.dtype), final_t if ctx.want_final else None


def _batch_first(tensor: Tensor, batch_dim: int | None, size: int, to: int) -> Tensor:
    if batch_dim is None:
        tensor = tensor.unsqueeze(to)
        return tensor.expand(*tensor.shape[:to], size, *tensor.shape[to + 1 :])
    return tensor.movedim(batch_dim, to)


def _gate_tangent(gates: Tensor, gates_t: Tensor, dtype: torch.dtype, log_gates: bool) -> Tensor:
    return gates_t.to(dtype) * gates.to(dtype).exp() if log_gates else gates_t.to(dtype)


def _differentiable_backward(
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d_states: Tensor | None,
    d_final_state: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    reverse: bool,
    log_gates: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradient as scans and elementwise operations, which autograd can differentiate again."""
    dtype = cpu.accumulation_dtype(gates.dtype, tokens_dtype)
    linear = gates.to(dtype).exp() if log_gates else gates.to(dtype)
    # The gate of the step that the opposite scan has met before; 0 at the first step that it meets in a sequence.
    met = shift_states(linear, None, cu_seqlens, dim, not reverse).conj()
    source = torch.zeros_like(states, dtype=dtype) if d_states is None else d_states.to(dtype)
    if d_final_state is not None:
        source = source + shift_states(torch.zeros_like(source), d_final_state.to(dtype), cu_seqlens, dim, not reverse)
    d_tokens, d_first = scan(met, source, None, cu_seqlens, dim, not reverse)
    d_gates = d_initial_state = None
    if needs[0]:
        before = shift_states(states.to(dtype), None if initial_state is None else initial_state.to(dtype),
                              cu_seqlens, dim, reverse)  # fmt: skip
        d_gates = d_tokens * before.conj()
        if log_gates:
            d_gates = d_gates * linear.conj()
        d_gates = _in_dtype(d_gates, gates.dtype)
    if needs[2] and initial_state is not None and d_first is not None:
        # The gate of each sequence's first step: what the opposite scan ends with when every gate is 0.
        ones = torch.ones_like(d_first)
        _, first_gate = scan(torch.zeros_like(linear), linear.conj(), ones, cu_seqlens, dim, not reverse)
        assert first_gate is not None
        passed = torch.zeros_like(d_first) if d_final_state is None else d_final_state
        _, d_first = scan(met, source, passed, cu_seqlens, dim, not reverse)
        assert d_first is not None
        d_initial_state = _in_dtype(first_gate * d_first, initial_state.dtype)
    return d_gates, _in_dtype(d_tokens, tokens_dtype) if needs[1] else None, d_initial_state


def _in_dtype(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    if gradient.is_complex() and not dtype.is_complex:
        gradient = gradient.real
    return gradient.to(dtype)


class _Library(torch.library.Library):
    """A library whose operators raise on tensors with tangents, which the kernel of `register_autograd` would lose.

    That is how an exported program calls them under forward-mode differentiation.
    """

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        if dispatch_key != "Autograd":
            return super().impl(op_name, fn, dispatch_key, **options)

        def kernel(keyset: Any, *arguments: Any) -> Any:
            if torch.autograd.forward_ad._current_level >= 0 and any(map(_has_tangent, arguments)):
                raise RuntimeError(_NO_FORWARD_MODE)
            return fn(keyset, *arguments)

        return super().impl(op_name, kernel, dispatch_key, **options)


def _has_tangent(argument: Any) -> bool:
    return isinstance(argument, Tensor) and torch.autograd.forward_ad.unpack_dual(argument).tangent is not None


library = _Library("linear_scan", "DEF")
library.define(
    "scan(Tensor gates, Tensor tokens, Tensor? initial_state, Tensor? cu_seqlens, int dim, bool reverse, "
    "bool log_gates, bool want_final=True) -> (Tensor, Tensor)"
)
library.define(
    "scan_backward(Tensor gates, Tensor states, Tensor? initial_state, Tensor? cu_seqlens, Tensor? d_states, "
    "Tensor? d_final_state, ScalarType tokens_dtype, int dim, bool reverse, bool log_gates, bool needs_gates, "
    "bool needs_tokens, bool needs_initial_state) -> (Tensor, Tensor, Tensor)"
)


def _scan(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool = True,
) -> tuple[Tensor, Tensor]:
    states, final_state = implementation(tokens).forward(
        gates, tokens, initial_state, cu_seqlens, dim, reverse, log_gates, want_final
    )
    if final_state is None:
        # An operator returns tensors: an empty one for what nothing asks for.
        final_state = tokens.new_empty(0, dtype=cpu.accumulation_dtype(gates.dtype, tokens.dtype))
    return states, final_state


def _scan_backward(
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d_states: Tensor | None,
    d_final_state: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    reverse: bool,
    log_gates: bool,
    needs_gates: bool,
    needs_tokens: bool,
    needs_initial_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = implementation(gates).backward(
        gates, states, initial_state, cu_seqlens, d_states, d_final_state, tokens_dtype,
        dim, reverse, log_gates, (needs_gates, needs_tokens, needs_initial_state),
    )  # fmt: skip
    return tuple(gates.new_empty(0) if g is None else g for g in gradients)  # type: ignore[return-value]


for _device in ("CPU", "CUDA"):
    library.impl("scan", _scan, _device)
    library.impl("scan_backward", _scan_backward, _device)


@torch.library.register_fake("linear_scan::scan", lib=library)
def scan_fake(
    gates: Tensor,
    tokens: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    dim: int,
    reverse: bool,
    log_gates: bool,
    want_final: bool = True,
) -> tuple[Tensor, Tensor]:
    states = torch.empty_like(tokens, dtype=cpu.states_dtype(gates.dtype, tokens.dtype))
    shape = [*tokens.shape[:-1]] if dim == -1 else [*tokens.shape[:-2], tokens.shape[-1]]
    if cu_seqlens is not None:
        shape.insert(0, cu_seqlens.shape[0] - 1)
    if not want_final:
        shape = [0]
    return states, tokens.new_empty(shape, dtype=cpu.accumulation_dtype(gates.dtype, tokens.dtype))


@torch.library.register_fake("linear_scan::scan_backward", lib=library)
def scan_backward_fake(
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d_states: Tensor | None,
    d_final_state: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    reverse: bool,
    log_gates: bool,
    needs_gates: bool,
    needs_tokens: bool,
    needs_initial_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    empty = gates.new_empty(0)
    return (
        torch.empty_like(gates) if needs_gates else empty,
        torch.empty_like(states, dtype=tokens_dtype) if needs_tokens else gates.new_empty(0),
        torch.empty(initial_state.shape, dtype=initial_state.dtype, device=gates.device)
        if needs_initial_state and initial_state is not None
        else gates.new_empty(0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    gates, tokens, initial_state, cu_seqlens, ctx.dim, ctx.reverse, ctx.log_gates, ctx.want_final = inputs
    ctx.tokens_dtype = tokens.dtype
    ctx.save_for_backward(gates, output[0], initial_state, cu_seqlens)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_states: Tensor | None, d_final_state: Tensor | None) -> tuple[Tensor | None, ...]:
    gates, states, initial_state, cu_seqlens = ctx.saved_tensors
    if not ctx.want_final:
        d_final_state = None
    if d_states is None and d_final_state is None:
        return (None,) * 8
    if d_states is None and _is_distributed(states):
        # DTensor keeps what it found out about a call by its tensors alone: two absent ones would look alike to it.
        d_states = torch.zeros_like(states)
    gradients = _traced_backward(
        gates, states, initial_state, cu_seqlens, d_states, d_final_state, ctx.tokens_dtype,
        ctx.dim, ctx.reverse, ctx.log_gates, tuple(ctx.needs_input_grad[:3]),
    )  # fmt: skip
    return (*gradients, None, None, None, None, None)


def _traced_backward(
    gates: Tensor,
    states: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    d_states: Tensor | None,
    d_final_state: Tensor | None,
    tokens_dtype: torch.dtype,
    dim: int,
    reverse: bool,
    log_gates: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The fused backward as an operator in a graph."""
    gradients = torch.ops.linear_scan.scan_backward(
        gates, states, initial_state, cu_seqlens, d_states, d_final_state, tokens_dtype, dim, reverse, log_gates, *needs
    )
    return tuple(g if need else None for g, need in zip(gradients, needs, strict=True))  # type: ignore[return-value]


def no_second_derivative(ctx: Any, *_: Any) -> None:
    raise RuntimeError(
        "expected an eager call for a second derivative, but the scan was traced by torch.compile or a tensor "
        "subclass: differentiate twice outside the compiled function."
    )


torch.library.register_autograd("linear_scan::scan", _gradients, setup_context=_save, lib=library)
torch.library.register_autograd("linear_scan::scan_backward", no_second_derivative, lib=library)
