"""Programs that leave this process: exported with decompositions, and compiled ahead of time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scan import linear_scan, linear_scan_bidirectional

ROOT = Path(__file__).parents[2]

LOADED = """
import sys, torch, scan
package, inputs = sys.argv[1:]
run = torch._inductor.aoti_load_package(package)
for arguments, wanted in torch.load(inputs):
    for a, b in zip(run(*arguments), wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        torch.testing.assert_close(a, b)
print("equal", flush=True)
"""


class _Layer(torch.nn.Module):
    """Packed sequences in both layouts and directions, with a state, between operations that a compiler fuses."""

    def forward(self, gates: Tensor, tokens: Tensor, initial: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, ...]:
        ahead = linear_scan(gates.sigmoid(), tokens, initial, cu_seqlens=cu_seqlens)
        both = linear_scan_bidirectional(gates.sigmoid().mT, tokens.mT, dim=-2, cu_seqlens=cu_seqlens, reduce="sum")
        return 2 * ahead.states, ahead.final_state, both.states


def _needs_cpp_library(package: Path) -> bool:
    """Whether what a package loads names the shared C++ library."""
    with zipfile.ZipFile(package) as archive:
        loaded = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    return len(loaded) == 1 and b"\0libstdc++.so.6\0" in loaded[0]


def _arguments(lengths: list[int], slack: int, device: torch.device) -> tuple[Tensor, ...]:
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(device)
    T = sum(lengths) + slack
    drawn = (torch.rand(3, T), torch.randn(3, T), torch.randn(len(lengths), 3))
    return *(t.to(device) for t in drawn), cu_seqlens


def _exported(device: torch.device, strict: bool = False) -> torch.export.ExportedProgram:
    # From 2 sequences on: PyTorch tells an axis of one from every other.
    sequences = torch.export.Dim("sequences", min=2, max=1000)
    length = torch.export.Dim("length", min=2, max=100_000)
    shapes = {"gates": {1: length}, "tokens": {1: length}, "initial": {0: sequences}, "cu_seqlens": {0: sequences + 1}}
    return torch.export.export(_Layer(), _arguments([4, 0, 5], 2, device), dynamic_shapes=shapes, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_sequences_of_any_number_and_length(strict: bool, contract_device: torch.device) -> None:
    program = _exported(contract_device, strict)
    for exported in (program, program.run_decompositions()):
        names = {str(node.target) for node in exported.graph.nodes}
        assert "linear_scan.scan.default" in names
        for lengths in ([3, 8], [4, 0, 5], [1] * 7):
            arguments = _arguments(lengths, 1, contract_device)
            for a, b in zip(exported.module()(*arguments), _Layer()(*arguments), strict=True):
                assert torch.equal(a, b)


def test_gradients_through_an_exported_program(contract_device: torch.device) -> None:
    arguments = [t.requires_grad_(t.is_floating_point()) for t in _arguments([4, 0, 5], 2, contract_device)]
    wanted, got = (
        torch.autograd.grad(sum(o.sin().sum() for o in f(*arguments)), arguments[:3])  # type: ignore[arg-type]
        for f in (_Layer(), _exported(contract_device).module())
    )
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[None]:
    """g++ that links the C++ library PyTorch has loaded, also where a static one is all that it would find.

    A package that brings its own copy crashes as it is loaded (signal 11, seen on the H200's machine): some identities
    of locale facets are then of one copy and some of the other, and what is loaded reads a name by `std::regex`.
    """
    found = shutil.which("g++")
    if found is None:
        pytest.skip("packaging ahead of time takes a C++ compiler, g++")
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libstdc++.so" in line}
    (tmp_path / "libstdc++.so").symlink_to(loaded.pop())
    path = tmp_path / "g++"
    path.write_text(f'#!/bin/sh\nexec {found} -L{tmp_path} "$@"\n')
    path.chmod(0o755)
    with torch._inductor.config.patch({"cpp.cxx": (None, str(path))}):
        yield


def test_a_package_compiled_ahead_of_time_runs_in_another_process(
    contract_device: torch.device, tmp_path: Path, compiler: None
) -> None:
    package = torch._inductor.aoti_compile_and_package(
        _exported(contract_device), package_path=str(tmp_path / "layer.pt2")
    )
    assert _needs_cpp_library(Path(package))
    # Also on one length more than 2**15, from which on the CPU carries states in double precision.
    sets = [_arguments(lengths, 1, contract_device) for lengths in ([3, 8], [4, 0, 5], [1] * 7, [40_000, 1])]
    torch.save([(arguments, _Layer()(*arguments)) for arguments in sets], tmp_path / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", LOADED, package, str(tmp_path / "inputs.pt")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip().endswith("equal"), done.stderr
