"""jax.lax.associative_scan under jax.jit."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from experiments.config import Case
from experiments.inputs import DTYPES, Inputs
from experiments.providers.base import Call, Named, Provider, outputs_of

# XLA compiles every shape, dtype and mode anew, unrolled over the levels of the tree: about four seconds a length.
_LENGTHS = (512, 4096)


class JaxAssociativeScan(Provider):
    name = "jax_associative_scan"
    package = "jax"
    levels = ("api",)
    no_kernel = "jax_associative_scan has no kernel to call directly, see level api."
    devices = ("cuda", "cpu")
    dims = (-1, -2)
    reversible = True
    layout = "arrays of JAX, made beforehand"

    def limits(self, case: Case, device: str) -> str | None:
        if case.T not in _LENGTHS:
            lengths = ", ".join(str(length) for length in _LENGTHS)
            return f"compiling jax_associative_scan takes seconds a shape, so only T = {lengths} are measured."
        if case.stem == "speed" and torch.device(device).type == "cuda" and case.dtype != "float32":
            return "compiling jax_associative_scan takes seconds a shape, so it is timed in float32 only."
        if case.stem == "precision" and case.dim == -2:
            return "compiling jax_associative_scan takes seconds a shape, and its errors are measured with time last."
        return None

    def refuses(self, case: Case, device: str) -> str | None:
        reason = super().refuses(case, device)
        kind = torch.device(device).type
        if reason is None and not _devices(self.module(), kind):
            return f"jax_associative_scan finds no {kind} device: JAX is installed without the plugin for it."
        return reason

    def module(self) -> ModuleType:
        # JAX would take three quarters of the GPU's memory for itself when it first touches it.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        return super().module()

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype of the inputs."""
        return DTYPES[case.dtype]

    def api_call(self, case: Case, inputs: Inputs) -> Call:
        jax = self.module()
        device = _devices(jax, inputs.tokens.device.type)[0]
        gates, tokens, d_states = (
            jax.block_until_ready(jax.device_put(_to_jax(jax, tensor), device))
            for tensor in (inputs.gates, inputs.tokens, inputs.d_states)
        )
        compiled = _functions(case.dim, case.reverse)
        if case.mode == "forward":

            def run() -> tuple[Any, ...]:
                return (compiled.forward(gates, tokens),)

        elif case.mode == "backward":
            _, pullback = jax.block_until_ready(compiled.linearize(gates, tokens))

            def run() -> tuple[Any, ...]:
                return compiled.backward(pullback, d_states)

        else:

            def run() -> tuple[Any, ...]:
                return compiled.both(gates, tokens, d_states)

        def read(outputs: tuple[Any, ...]) -> Named:
            return {name: _to_torch(array) for name, array in zip(outputs_of(case), outputs, strict=True)}

        def finish(outputs: tuple[Any, ...]) -> None:
            jax.block_until_ready(outputs)

        return Call(run, read, finish)


def _devices(jax: ModuleType, kind: str) -> list[Any]:
    try:
        return jax.devices(kind)
    except RuntimeError:
        return []


def _to_jax(jax: ModuleType, tensor: Tensor) -> Any:
    """A copy of its own, so that no buffer is shared between two allocators."""
    return jax.numpy.array(jax.dlpack.from_dlpack(tensor.contiguous()), copy=True)


def _to_torch(array: Any) -> Tensor:
    return torch.from_dlpack(array)


@cache
def _functions(dim: int, reverse: bool) -> SimpleNamespace:
    """The jitted functions, kept so that a shape is compiled once in a process."""
    import jax

    def combine(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], earlier[1] * later[0] + later[1]

    def scan(gates: Any, tokens: Any) -> Any:
        # With reverse=True, JAX refuses an axis counted from the end.
        return jax.lax.associative_scan(combine, (gates, tokens), reverse=reverse, axis=gates.ndim + dim)[1]

    def both(gates: Any, tokens: Any, d_states: Any) -> Any:
        states, pullback = jax.vjp(scan, gates, tokens)
        return states, *pullback(d_states)

    return SimpleNamespace(
        forward=jax.jit(scan),
        linearize=jax.jit(lambda gates, tokens: jax.vjp(scan, gates, tokens)),
        backward=jax.jit(lambda pullback, d_states: pullback(d_states)),
        both=jax.jit(both),
    )
