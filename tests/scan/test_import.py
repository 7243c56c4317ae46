"""What a machine must have: nothing but PyTorch for the CPU, Triton and a C compiler for a GPU, and who says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scan import launch

NO_TRITON = "import sys; sys.modules['triton'] = None\n"
TRITON_IS_MISSING = (
    "RuntimeError: expected Triton to scan tensors on a GPU, but it cannot be imported: install the triton that "
    "belongs to this torch, or move the tensors to the CPU."
)
COMPILER_IS_MISSING = (
    "expected a C compiler for the first launch of a kernel, but Triton found none: install gcc, or name a compiler "
    "in the environment variable CC."
)
EVERYTHING = """
import torch, scan
from scan import reference
x = torch.rand(2, 6, requires_grad=True)
cu = scan.lengths_to_cu_seqlens([2, 0, 3])
outputs = [
    *scan.linear_scan(x, x, x[:, 0]),
    *scan.linear_scan(x, x, cu_seqlens=cu, dim=-1, reverse=True, log_gates=True),
    *scan.linear_scan(x.half(), x, dim=-2),
    *scan.linear_scan(x.to(torch.complex64), x),
    *scan.linear_scan_bidirectional(x, x),
    scan.scan_causal(x, x, {"cu_seqlens": cu, "chunk_size": 4, "grid": scan.get_grid(len(cu), 3, 4, 2)}),
    *scan.scan_bidirectional_branched_compiled(x, x, x, x),
    scan.shift_pad_compiled(x, cu),
    reference.parallel_scan(x[None], x[None]),
    reference.blelloch_scan(x[None], x[None]),
    torch.compile(lambda t: scan.linear_scan(t, t).states, backend="aot_eager")(x),
]
sum(o.abs().sum() for o in outputs).backward()
first = torch.autograd.grad(scan.linear_scan(x, x).states.square().sum(), x, create_graph=True)[0]
first.sum().backward()
assert x.grad.isfinite().all() and torch.func.grad(lambda t: scan.scan_causal(t, t).sum())(x).isfinite().all()
print("triton" in sys.modules and sys.modules["triton"])
"""


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "CC")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env=kept | environment,
        capture_output=True,
        text=True,
    )


def test_everything_runs_on_the_cpu_with_neither_driver_nor_triton() -> None:
    done = _python(NO_TRITON + EVERYTHING, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None"]


def test_scanning_on_the_cpu_imports_no_triton() -> None:
    code = (
        "import sys, torch, scan; before = 'triton' in sys.modules; x = torch.rand(2, 3, requires_grad=True); "
        "scan.linear_scan(x, x, cu_seqlens=torch.tensor([0, 3])).states.sum().backward(); "
        "print(before or 'triton' not in sys.modules)"
    )
    assert _python(code).stdout.strip() == "True"


@pytest.mark.parametrize("call", ["x, x, None, None", "x, x, None, torch.tensor([0, 3])"], ids=["", "packed"])
def test_a_launch_without_triton_is_one_sentence(call: str) -> None:
    # A launch as for a GPU; it ends before any tensor is touched.
    code = (
        f"import torch; from scan import launch; x = torch.rand(2, 3); launch.forward({call}, -1, False, False, True)"
    )
    done = _python(NO_TRITON + code, CUDA_VISIBLE_DEVICES="")
    assert done.stderr.strip().splitlines()[-1] == TRITON_IS_MISSING


@pytest.mark.gpu
def test_a_call_without_triton_is_one_sentence() -> None:
    code = "import torch, scan; x = torch.rand(2, 3, device='cuda'); scan.linear_scan(x, x)"
    assert _python(NO_TRITON + code).stderr.strip().splitlines()[-1] == TRITON_IS_MISSING


class _Failing:
    """A kernel whose launch fails."""

    arg_names = ()

    def __init__(self, failure: Any) -> None:
        self.failure = failure

    def __getitem__(self, grid: Any) -> Any:
        return self.failure


def _build_without_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """What Triton itself does where it looks for a compiler in vain."""
    build = pytest.importorskip("triton.runtime.build", reason="Triton's own words need Triton")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    return lambda *_, **__: build._build("stub", "stub.c", str(folder), [], [], [], [])


def test_a_launch_without_a_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        launch._run(
            None, (), launch.Launch(_Failing(_build_without_compiler(monkeypatch, tmp_path)), (1, 1, 1), (), {})
        )
    assert str(raised.value) == COMPILER_IS_MISSING
    assert "Failed to find C compiler" in str(raised.value.__cause__)


def test_other_failures_stay_as_they_are() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    with pytest.raises(RuntimeError, match=r"^Triton Error \[CUDA\]: out of memory$"):
        launch._run(None, (), launch.Launch(_Failing(fail), (1, 1, 1), (), {}))


@pytest.mark.gpu
def test_a_call_without_a_compiler_is_one_sentence(tmp_path: Path) -> None:
    code = "import torch, scan; x = torch.rand(2, 3, device='cuda'); scan.linear_scan(x, x)"
    done = _python(code, PATH=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.stderr.strip().splitlines()[-1] == f"RuntimeError: {COMPILER_IS_MISSING}"
