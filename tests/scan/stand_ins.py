"""What stands in for Triton where a launch is looked at and nothing is computed."""

from __future__ import annotations

from typing import Any


class Compiled:
    """Stands in for what Triton has compiled."""

    function = packed_metadata = None

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.public: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *arguments, stream: self.public.append((grid, arguments))

    def run(self, x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        assert arguments[:5] == (None,) * 5, "function, two kinds of metadata, two hooks"
        self.calls.append(((x, y, z), arguments[5:]))


class Kernel:
    """Stands in for a jit function; keeps what a launch binds."""

    def __init__(self, kernel: Any) -> None:
        self.arg_names = kernel.arg_names
        self.bound: list[tuple[Any, dict[str, Any]]] = []
        self.compiled: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch_once(*arguments: Any, **keywords: Any) -> Compiled:
            given = dict(zip(self.arg_names, arguments, strict=False)) | keywords
            self.bound.append((grid, {name: given[name] for name in self.arg_names}))
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return launch_once
