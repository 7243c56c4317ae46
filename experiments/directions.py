"""A case of both directions as two cases of one, and what their results make together."""

from __future__ import annotations

from dataclasses import replace

from experiments.config import DIRECTIONS, Case
from experiments.inputs import Inputs

_REVERSE = "_reverse"


def with_reverse(names: tuple[str, ...], case: Case) -> tuple[str, ...]:
    """Outputs of one direction by name, each with its counterpart behind it where the case has one."""
    found: list[str] = []
    for name in names:
        found.append(name)
        if case.directions == "branched" or (case.directions == "shared" and name == "states"):
            found.append(name + _REVERSE)
    return tuple(found)


def terms(name: str, case: Case) -> tuple[tuple[int, str], ...]:
    """Whose results an output is the sum of: the direction, 0 or 1, and the name there."""
    base = name.removesuffix(_REVERSE)
    if base != name:
        return ((1, base),)
    if base + _REVERSE in with_reverse((base,), case):
        return ((0, base),)
    return ((0, base), (1, base))


def apart(case: Case, inputs: Inputs) -> tuple[tuple[Case, Inputs], tuple[Case, Inputs]]:
    """The two directions, each a case with its inputs: from the first step to the last, and back."""
    one = replace(case, directions=DIRECTIONS[0])
    second = Inputs(
        inputs.gates if inputs.gates_reverse is None else inputs.gates_reverse,
        inputs.tokens if inputs.tokens_reverse is None else inputs.tokens_reverse,
        inputs.d_states if inputs.d_states_reverse is None else inputs.d_states_reverse,
    )
    return (one, Inputs(inputs.gates, inputs.tokens, inputs.d_states)), (replace(one, reverse=True), second)
