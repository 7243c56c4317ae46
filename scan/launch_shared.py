"""Both directions of the same gates and tokens on CUDA, one launch each way.

Whatever else is asked for is `None` here: packed rows, initial states, rows for which `tuning.shared` has no tile,
channels last, float64 and complex numbers are two scans (`launch.forward_both`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from scan import configure, launch, tuning
from scan.configure import Axes, Launch, Sizes, same_phase, triton_language
from scan.launch import Plan, Work


class Outputs(NamedTuple):
    """What `forward` returns: what was not asked for is None."""

    added: Tensor | None
    states: Tensor | None
    states_reverse: Tensor | None
    final: Tensor | None
    final_reverse: Tensor | None


Gradients = tuple[Tensor | None, Tensor | None]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# From so many steps of 16 bits a thread on, they are held as they were loaded: fewer leave room for programs anyway.
_HELD_FROM = 32


def serves(gates: Tensor, tokens: Tensor, dim: int) -> bool:
    """Whether there is a tile for rows of both directions, forward and backward."""
    if dim != -1 or gates.dtype not in _DTYPES or tokens.dtype not in _DTYPES or tokens.numel() == 0:
        return False
    if _tile(tokens, True, backward=False) is None:
        return False
    states = Axes.of(torch.empty_like(tokens, device="meta"), -1)
    return (
        states.t == 1
        and _tile(tokens, _even(states), backward=False) is not None
        and all(Axes.of(t, -1).tensor is t for t in (gates, tokens))
    )


def _tile(like: Tensor, even: bool, *, backward: bool, added: bool = False) -> tuning.Tile | None:
    """The tile for rows like these, if the GPU has room for all programs of a row that wait for each other."""
    sizes = Sizes.of(like, -1)
    itemsize = like.element_size()
    tile = tuning.shared(sizes.T, itemsize, backward=backward, even=even, n_rows=sizes.rows, added=added)
    if tile is None or tile.window == 0:
        return tile
    room = configure.multiprocessors(like) * tuning.programs_at_once(tile)
    return tile if _tiles(sizes.T, tile) <= room else None


def _tiles(T: int, tile: tuning.Tile) -> int:
    return -(-T // tile.steps)


def forward(
    gates: Tensor, tokens: Tensor, log_gates: bool, want_final: bool, added: bool, apart: bool
) -> tuple[Outputs, Plan | None]:
    """The sum of the states of both directions if `added`, each if `apart`, and the plan where one was kept."""
    if launch.is_elsewhere(tokens):
        with torch.cuda.device(tokens.device):
            return forward(gates, tokens, log_gates, want_final, added, apart)
    gates, tokens = launch._stored(gates), launch._stored(tokens)
    total = torch.empty_like(tokens) if added else None
    states, back = (torch.empty_like(tokens), torch.empty_like(tokens)) if apart else (None, None)
    final = final_back = None
    if want_final:
        final, final_back = (tokens.new_empty(tokens.shape[:-1], dtype=torch.float32) for _ in range(2))
    work = Work((gates, tokens, states, back, total), (final, final_back), torch.float32)
    served, plan = _launch("forward_shared", work, log_gates)
    assert served
    return Outputs(total, states, back, final, final_back), plan


def backward(
    gates: Tensor,
    states: Tensor,
    states_reverse: Tensor,
    d_states: Tensor,
    d_states_reverse: Tensor | None,
    tokens_dtype: torch.dtype,
    log_gates: bool,
    needs: tuple[bool, bool],
) -> tuple[Gradients, Plan | None] | None:
    """Gradients of gates and tokens, those that `needs` asks for; no `d_states_reverse` means that of both is one.

    None where incoming gradients lie so that one launch does not serve them.
    """
    if launch.is_elsewhere(states):
        with torch.cuda.device(states.device):
            return backward(gates, states, states_reverse, d_states, d_states_reverse, tokens_dtype, log_gates, needs)
    gates, d_states = launch._stored(gates), launch._stored(d_states)
    if d_states_reverse is not None:
        d_states_reverse = launch._stored(d_states_reverse)
        if _layout(d_states_reverse) != _layout(d_states):
            return None
    d_gates = torch.empty_like(gates) if needs[0] else None
    d_tokens = torch.empty_like(states, dtype=tokens_dtype) if needs[1] else None
    work = Work((gates, states, states_reverse, d_states, d_states_reverse, d_gates, d_tokens), (), torch.float32)
    served, plan = _launch("backward_shared", work, log_gates)
    return ((d_gates, d_tokens), plan) if served else None


def _layout(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.stride()


def _even(states: Axes) -> bool:
    """Whether rows begin and end with groups."""
    V = 16 // states.tensor.element_size()
    return states.tensor.shape[-1] % V == 0 and states.b % V == 0 and states.c % V == 0


def _launch(name: str, work: Work, log_gates: bool) -> tuple[bool, Plan | None]:
    """Launches the kernel if it serves these tensors; the plan where the launch was made before."""
    pointers = (*work.tensors, *work.states)
    addresses = [None if t is None else t.data_ptr() for t in pointers]
    key = launch._key(name, work, launch._UNPACKED, -1, False, log_gates, addresses)
    plan = launch._plans.get(key)
    if plan is not None:
        plan(work.tensors[0].get_device(), *addresses)
        return True, plan
    made = _configure(name, work, log_gates)
    if made is None:
        return False, None
    launch._run(key, pointers, made)
    return True, None


# The tensors whose strides a kernel takes, by their place among its first pointers; that of the states comes as such.
_TAKEN = {
    "forward_shared": (("GATES", 0), ("TOKENS", 1), ("STATES", None)),
    "backward_shared": (("GATES", 0), ("STATES", None), ("D_STATES", 3), ("D_GATES", 5), ("D_TOKENS", 6)),
}


def _configure(name: str, work: Work, log_gates: bool) -> Launch | None:
    """How the kernel is launched; None where no tile holds a row, or a tensor would have to be copied."""
    backward = name == "backward_shared"
    like = next(t for t in (work.tensors[1:2] if backward else work.tensors[2:]) if t is not None)
    states = Axes.of(like, -1)
    taken = {
        label: states if k is None else None if work.tensors[k] is None else Axes.of(work.tensors[k], -1)  # type: ignore[arg-type]
        for label, k in _TAKEN[name]
    }
    in_place = all(a is None or a is states or any(a.tensor is t for t in work.tensors) for a in taken.values())
    sizes, even = Sizes.of(like, -1), _even(states)
    config = _tile(like, even, backward=backward, added=backward and work.tensors[4] is None)
    if config is None or states.tensor is not like or states.t != 1 or not in_place:
        return None
    V, tiles, window = config.width, _tiles(sizes.T, config), 0
    if config.window:
        window = max(32, 1 << (tiles - 1).bit_length())
    tl = triton_language()
    from scan.kernels import shared as kernels

    present = [a for a in taken.values() if a is not None]
    constants: dict[str, Any] = {"R": config.rows, "N": config.groups, "V": V, "LOG": log_gates, "EVEN": even}
    constants["WHOLE"] = even and sizes.T == tiles * config.steps
    constants["EVEN_ROWS"] = sizes.rows % config.rows == 0
    constants["FLAT"] = sizes.B == 1 or all(a.b == sizes.C * a.c for a in present)
    for label, a in taken.items():
        constants[f"{label}_VECTOR"] = a is not None and a.t == 1 and same_phase(a, states, V)
    constants |= {
        "STATE": tl.float32,
        "TIME": tl.int32,
        "ONE_WARP": config.num_warps == 1,
        "WINDOW": window,
        "HOLD": even and V == 8 and config.rows * config.steps >= _HELD_FROM * 32 * config.num_warps,
    }
    strides = [stride for a in taken.values() for stride in ((0, 0, 0) if a is None else a.strides)]
    arguments = (sizes.C, sizes.T, sizes.rows, *strides)
    grid = (-(-sizes.rows // config.rows) * tiles, 1, 1)
    # The next ticket, with a line of its own, and a map of each tile in each direction.
    n_exchanged = 16 + 2 * sizes.rows * tiles if config.window else 0
    return Launch(getattr(kernels, name), grid, arguments, constants | configure.compile_options(config), n_exchanged)
