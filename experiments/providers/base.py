"""What a provider is: the cases it can run, with a sentence for those it cannot, and the calls it makes there."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from experiments.config import DIRECTIONS, NEEDS, Case
from experiments.directions import with_reverse
from experiments.inputs import DTYPES, Inputs

OUTPUTS = {
    "forward": ("states",),
    "backward": ("d_gates", "d_tokens"),
    "forward_backward": ("states", "d_gates", "d_tokens"),
}
SIXTEEN_BIT = (torch.float16, torch.bfloat16)

# Packages that failed after they were found: importing them again, each case, would take as long: for CUDA a minute.
_broken_packages: dict[str, str] = {}

Named = dict[str, Tensor]


def outputs_of(case: Case) -> tuple[str, ...]:
    """What a call of the case returns, in this order."""
    names = tuple(name for name in OUTPUTS[case.mode] if name == "states" or name.removeprefix("d_") in wanted(case))
    return names if case.directions == DIRECTIONS[0] else with_reverse(names, case)


def wanted(case: Case) -> tuple[str, ...]:
    """The inputs whose gradients are asked for."""
    return tuple(case.needs.split(","))


@dataclass(frozen=True)
class Call:
    """A case on one set of inputs, ready to be called again and again."""

    run: Callable[[], tuple[Any, ...]]
    """Makes the call and returns its outputs, in the provider's own layout."""
    read: Callable[[tuple[Any, ...]], Named]
    """The outputs of a run by name, in the layout of the case, without a copy where that is possible."""
    finish: Callable[[tuple[Any, ...]], None] | None = None
    """Waits for the outputs of a run, where PyTorch's stream does not know of it."""
    poison: Callable[[], None] | None = None
    """Fills the outputs with NaN, where the call writes to buffers of its own."""
    check: Callable[[], str | None] | None = None
    """A test of the outputs that takes the place of the comparison with the scan: None, or what is wrong."""


class Provider(ABC):
    """A competitor. Attributes say what it supports; `limits` adds what only a case can tell."""

    name: str
    package: str | None = None
    """The module to import, and only when somebody asks."""
    levels: tuple[str, ...] = ("kernel", "api")
    no_kernel = ""
    """Why there is no level `kernel`, where there is none."""
    devices: tuple[str, ...] = ("cuda",)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
    dims: tuple[int, ...] = (-1,)
    directions: tuple[str, ...] = DIRECTIONS[:1]
    packed = False
    reversible = False
    selective = False
    """Does less where the gradients of one input alone are asked for."""
    computes = True
    """Whether its outputs are those of the scan."""
    log_gates = False
    """Takes logarithms of the gates, rounded to the dtype: compared with the scan of the gates they stand for."""
    layout: str | None = None
    """How it wants its inputs, where that differs from the case; they are brought there before any timing."""

    def refuses(self, case: Case, device: str) -> str | None:
        """Why it cannot run the case on this device, in one sentence; None if it can."""
        kind = torch.device(device).type
        if kind not in self.devices:
            return f"{self.name} runs on {' and '.join(self.devices)}, and this device is {kind}."
        if case.level not in self.levels:
            return self.no_kernel
        if DTYPES[case.dtype] not in self.dtypes:
            return f"{self.name} has no {case.dtype}."
        if case.dim not in self.dims:
            first, last = "channels first, time contiguous", "channels last"
            taken, held = (first, last) if case.dim == -2 else (last, first)
            return f"{self.name} takes {taken}, and the case holds {held}."
        if case.lengths and not self.packed:
            return f"{self.name} cannot scan packed sequences."
        if case.directions not in self.directions:
            found, asked = ("one direction", "both") if case.directions != DIRECTIONS[0] else ("both directions", "one")
            return f"{self.name} scans in {found}, and the case asks for {asked}."
        if case.reverse and not self.reversible:
            return f"{self.name} has no reverse direction that is differentiable."
        if case.needs != NEEDS[0] and not self.selective:
            return f"{self.name} computes the gradients of gates and tokens, whichever are asked for."
        return self.limits(case, device) or self.missing()

    def limits(self, case: Case, device: str) -> str | None:
        """What else stands in the way of this case, in one sentence."""
        return None

    def missing(self) -> str | None:
        """Why its package cannot be imported here, in one sentence; None if it can."""
        if self.package is None or self.package in _broken_packages:
            return _broken_packages.get(self.package or "")
        try:
            self.module()
        except ImportError as error:
            return f"{self.package} cannot be imported here: {first_line(error)}."
        except Exception as error:  # a package that compiles when it is imported fails in any way it likes
            reason = f"{self.package} fails when imported: {type(error).__name__}: {first_line(error)}."
            return _broken_packages.setdefault(self.package, reason)
        return None

    def module(self) -> ModuleType:
        """Its package, imported now."""
        assert self.package is not None
        return importlib.import_module(self.package)

    def accumulates(self, case: Case, device: str) -> torch.dtype:
        """The dtype in which it keeps the state by its own account: what its error budget is derived from."""
        return torch.promote_types(DTYPES[case.dtype], torch.float32)

    def detail(self, case: Case, device: str) -> dict[str, Any]:
        """What the record should say about how it ran the case."""
        return {"layout": self.layout} if self.layout else {}

    def prepare(self, case: Case, sets: Sequence[Inputs]) -> None:
        """What must be found out before calls are built on these sets of inputs."""
        return None

    def build(self, case: Case, inputs: Inputs) -> Call:
        """The call of a case that it does not refuse."""
        return self.kernel_call(case, inputs) if case.level == "kernel" else self.api_call(case, inputs)

    def kernel_call(self, case: Case, inputs: Inputs) -> Call:
        """Its kernels called directly, into outputs allocated beforehand where they take them, without autograd."""
        raise NotImplementedError(f"{self.name} has no kernel level")

    @abstractmethod
    def api_call(self, case: Case, inputs: Inputs) -> Call:
        """Its public function, gradients through autograd."""


Returned = TypeVar("Returned")


def of_a_later_call(scan: Callable[..., Returned], leaves: Sequence[Tensor]) -> Returned:
    """What a public function returns, with its graph, as training finds it.

    Behind two calls nothing is decided, compiled or kept for the first time.
    """
    with torch.enable_grad():
        for _ in range(2):
            scan(*leaves)
        return scan(*leaves)


class AutogradProvider(Provider):
    """A provider whose public function is differentiated by PyTorch."""

    @abstractmethod
    def function(self, case: Case, inputs: Inputs) -> Callable[[Tensor, Tensor], Tensor]:
        """The public function as `(gates, tokens) -> states`, all in its own layout."""

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        """Gates, tokens and d_states in its own layout."""
        return inputs.gates, inputs.tokens, inputs.d_states

    def restore(self, case: Case, tensor: Tensor) -> Tensor:
        """A tensor of its own layout in the layout of the case."""
        return tensor

    def read(self, case: Case) -> Callable[[tuple[Any, ...]], Named]:
        """Outputs by name."""
        names = outputs_of(case)
        return lambda outputs: {name: self.restore(case, tensor) for name, tensor in zip(names, outputs, strict=True)}

    def api_call(self, case: Case, inputs: Inputs) -> Call:
        """Forward as in inference, without a graph; backward on a kept graph of a call that was made before."""
        scan = self.function(case, inputs)
        gates, tokens, d_states = self.arrange(case, inputs)
        if case.mode == "forward":

            def run() -> tuple[Tensor, ...]:
                with torch.no_grad():
                    return (scan(gates, tokens),)

            return Call(run, self.read(case))

        leaves = tuple(
            each.detach().requires_grad_(name in wanted(case)) for name, each in (("gates", gates), ("tokens", tokens))
        )
        if case.mode == "backward":
            states = of_a_later_call(scan, leaves)
            needed = [each for each in leaves if each.requires_grad]
            return Call(lambda: torch.autograd.grad(states, needed, d_states, retain_graph=True), self.read(case))

        def run() -> tuple[Tensor, ...]:
            with torch.enable_grad():
                states = scan(*leaves)
            return states, *torch.autograd.grad(states, leaves, d_states)

        return Call(run, self.read(case))


class ChannelsLastProvider(AutogradProvider):
    """A provider that wants `[B, T, C]` and gets it before any timing."""

    dims = (-1, -2)
    layout = "channels last"

    def arrange(self, case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self._channels_last(case, inputs.gates),
            self._channels_last(case, inputs.tokens),
            self._channels_last(case, inputs.d_states),
        )

    def restore(self, case: Case, tensor: Tensor) -> Tensor:
        return tensor if case.dim == -2 else tensor.transpose(1, 2)

    @staticmethod
    def _channels_last(case: Case, tensor: Tensor) -> Tensor:
        return tensor if case.dim == -2 else tensor.transpose(1, 2).contiguous()


def buffered(run: Callable[[], None], outputs: Named) -> Call:
    """A kernel call that writes to buffers of its own."""

    def poison() -> None:
        for tensor in outputs.values():
            tensor.fill_(float("nan"))

    values = tuple(outputs.values())

    def call() -> tuple[Tensor, ...]:
        run()
        return values

    return Call(call, lambda _: dict(outputs), poison=poison)


def too_large(name: str, case: Case, device: str, most: int) -> str | None:
    """Why a composition of PyTorch operators is not measured on so many elements, in one sentence."""
    elements = case.B * case.C * case.T
    if torch.device(device).type != "cuda" or elements <= most:
        return None
    return (
        f"{name} launches an operator a level of its tree and keeps what each returns, so only cases of at most {most} "
        f"elements are measured, and this one has {elements}."
    )


def first_line(error: BaseException, longest: int = 240) -> str:
    """The first line of an error's message, without its full stop, so that a sentence can hold it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0].strip().rstrip(".")
    return line if len(line) <= longest else line[: longest - 1] + "…"
