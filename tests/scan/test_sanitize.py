"""What compute-sanitizer is given to watch (sanitize.py) is every kernel, in every way that it can be compiled."""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from scan import configure, launch
from tests.conftest import INTERPRETING
from tests.scan import sanitize
from tests.scan.stand_ins import Kernel

Bound = dict[str, list[dict[str, Any]]]

# What has one value wherever a kernel is launched, or in every small call.
ALWAYS = {
    "forward": {"TIME"},
    "backward": {"TIME"},
    # Longer rows take another kernel or two launches.
    "forward_both": {"TIME", "STAGES", "DESCENDING", "ONE_TILE"},
    "backward_both": {"TIME", "STAGES", "DESCENDING", "ONE_TILE"},
}


@pytest.fixture(scope="module")
def bound() -> Bound:
    """What every call of the list binds to each kernel; nothing is computed."""
    pytest.importorskip("triton")
    from scan.kernels import complex as complex_kernels
    from scan.kernels import either, entries, packed_table

    stand_ins: dict[str, Kernel] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(configure, "_shared_bytes", lambda tensor: 232_448)
        # One call has rows long enough for it.
        patched.setattr(either, "forward_either", Kernel(either.forward_either))
        for module, name in (
            *((entries, name) for name in ("forward", "backward", "forward_both", "backward_both")),
            *((complex_kernels, name) for name in ("forward", "backward")),
            (packed_table, "mark_sequences"),
        ):
            label = f"complex_{name}" if module is complex_kernels else name
            stand_ins[label] = Kernel(getattr(module, name))
            patched.setattr(module, name, stand_ins[label])
        for call in sanitize.CALLS:
            list(sanitize.launched(call, torch.device("cpu")))
    return {name: [arguments for _, arguments in kernel.bound] for name, kernel in stand_ins.items()}


def test_they_are_as_few_as_can_be_waited_for(bound: Bound) -> None:
    assert 60 <= len(sanitize.CALLS) <= 80 and len(set(map(str, sanitize.CALLS))) == len(sanitize.CALLS)
    assert sum(map(len, bound.values())) < 220


def test_every_constant_takes_all_its_values(bound: Bound) -> None:
    for kernel, launches in bound.items():
        seen: dict[str, set[str]] = defaultdict(set)
        for arguments in launches:
            for name, value in arguments.items():
                if name.isupper():
                    seen[name].add(str(value))
        for name, values in seen.items():
            if name in ALWAYS.get(kernel, {"TIME", "BLOCK"}):
                continue
            if name.endswith("_MOVE"):
                shifted = kernel == "complex_backward" and name in ("STATES_MOVE", "MET_GATES_MOVE")
                assert values == {"steps", "channels"} | (set() if shifted else {"groups"}), (kernel, name)
            elif values <= {"True", "False"}:
                assert len(values) == 2, f"{kernel} is never launched with another {name} than {values}"
            else:
                assert len(values) >= 2, (kernel, name)
        if kernel in ("forward", "backward"):
            assert {"0", "2", "128"} <= seen["WINDOW"] and {"1", "2", "3"} <= seen["STAGES"]
            assert {"2", "4", "8"} <= seen["V"] and len(seen["LINE"]) >= 6


def test_every_pointer_that_may_be_missing_is_missing_once(bound: Bound) -> None:
    optional = {
        "forward": {"initial_ptr", "final_ptr", "words_ptr", "exchange_ptr"},
        "backward": {
            "d_states_ptr", "d_gates_ptr", "d_tokens_ptr", "initial_ptr", "d_initial_ptr", "d_final_ptr", "words_ptr",
            "exchange_ptr",
        },
    }  # fmt: skip
    for kernel, names in optional.items():
        for name in names:
            assert {arguments[name] is None for arguments in bound[kernel]} == {False, True}, (kernel, name)


@pytest.mark.parametrize("kernel", ["forward", "backward", "complex_forward", "complex_backward"])
def test_every_pair_of_what_is_asked_meets(kernel: str, bound: Bound) -> None:
    def facts(arguments: dict[str, Any]) -> dict[str, Any]:
        moved = arguments.get("tokens_ptr", arguments.get("d_states_ptr"))
        return {name: arguments[name] for name in ("CHANNELS_LAST", "DESCENDING", "LOG")} | {
            "packed": arguments["words_ptr"] is not None,
            "initial": arguments["initial_ptr"] is not None,
            "several tiles": arguments["T"] > arguments["N"] * arguments["V"],
            "dtype": None if moved is None else moved.dtype,
        }

    launches = [facts(arguments) for arguments in bound[kernel]]
    for one, other in itertools.combinations(launches[0], 2):
        values = [{facts[name] for facts in launches} - {None} for name in (one, other)]
        met = {(facts[one], facts[other]) for facts in launches}
        assert met >= set(itertools.product(*values)), f"{one} and {other}"


def _overflows_noticed() -> AbstractContextManager[None]:
    """Integers that overflow, which only the interpreter notices, end a launch."""
    if not INTERPRETING:
        return nullcontext()
    from tests.interpreter import overflows_raise

    return overflows_raise()


def test_a_few_calls(kernel_device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    with _overflows_noticed():
        assert sanitize.main(["--first", "1", "--every", "12"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(range(1, len(sanitize.CALLS), 12)) + 2
    assert lines[0] == f"  1 {sanitize.CALLS[1]}" and lines[-2].endswith("launches: every output was right.")
    for kernel in ("entries.forward", "entries.backward", "packed_table.mark_sequences", "complex.forward"):
        assert f"{kernel} " in lines[-1]


def test_a_wrong_output_is_noticed(
    kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backward = launch.backward

    def wrong(*arguments: Any) -> launch.Gradients:
        d_gates, d_tokens, d_initial = backward(*arguments)
        assert d_tokens is not None
        d_tokens.view(-1)[-1] += 1
        return d_gates, d_tokens, d_initial

    monkeypatch.setattr(launch, "backward", wrong)
    assert sanitize.main(["--first", "2", "--every", "1000"]) == 1
    assert capsys.readouterr().err.startswith(f"call 2, {sanitize.CALLS[2]}: d_tokens: 1 of 16 elements are off")


def test_it_says_where_it_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available() or INTERPRETING:
        pytest.skip("it can run here")
    assert sanitize.main([]) == 2
    assert capsys.readouterr().err == "expected a GPU, or TRITON_INTERPRET=1: kernels run nowhere else.\n"
