"""A case run forward and backward, through the public function or through an implementation, and held to its budget."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from scan import linear_scan
from tests.scan.budget import assert_within, expected
from tests.scan.cases import Case, Inputs, draw, storage_bits

Outputs = dict[str, Tensor | None]


def run(case: Case, inputs: Inputs) -> Outputs:
    """Outputs and gradients of `linear_scan`."""
    leaves = {
        name: leaf.detach().requires_grad_()
        for name in ("gates", "tokens", "initial_state")
        if (leaf := getattr(inputs, name)) is not None
    }
    output = linear_scan(**leaves, cu_seqlens=inputs.cu_seqlens, **case.keywords)
    arriving = [(o, d) for o, d in zip(output, (inputs.d_states, inputs.d_final_state), strict=True) if d is not None]
    outputs, upstream = zip(*arriving, strict=True)
    gradients = torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True)
    named = {f"d_{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {"states": output.states, "final_state": output.final_state} | named


def run_implementation(
    implementation: ModuleType,
    case: Case,
    inputs: Inputs,
    needs: tuple[bool, bool, bool] = (True, True, True),
    want_final: bool = True,
) -> Outputs:
    """The same of `scan.launch` or `scan.cpu`, called as the operator calls them."""
    i = inputs
    states, final_state = implementation.forward(
        i.gates, i.tokens, i.initial_state, i.cu_seqlens, case.dim, case.reverse, case.log, want_final
    )
    d_gates, d_tokens, d_initial_state = implementation.backward(
        i.gates, states, i.initial_state, i.cu_seqlens, i.d_states, i.d_final_state, i.tokens.dtype,
        case.dim, case.reverse, case.log, needs,
    )  # fmt: skip
    return {
        "states": states, "final_state": final_state,
        "d_gates": d_gates, "d_tokens": d_tokens, "d_initial_state": d_initial_state,
    }  # fmt: skip


def check(case: Case, device: torch.device) -> None:
    """The public function on a drawn case: values, dtypes, places, and inputs left alone."""
    inputs = draw(case, device)
    before = [storage_bits(t) for t in inputs.tensors()]
    outputs = run(case, inputs)
    dtypes = {"states": case.states_dtype, "final_state": case.wide}
    dtypes |= {"d_gates": inputs.gates.dtype, "d_tokens": case.dtype}
    if inputs.initial_state is not None:
        dtypes["d_initial_state"] = inputs.initial_state.dtype
    for name, dtype in dtypes.items():
        output = outputs[name]
        assert output is not None and output.dtype == dtype and output.device.type == device.type, name
    assert_within(outputs, expected(case, inputs))
    for tensor, old in zip(inputs.tensors(), before, strict=True):
        assert torch.equal(storage_bits(tensor), old), "an input, or memory beside it, was written to"
