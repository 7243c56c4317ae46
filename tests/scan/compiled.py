"""Kernels compiled ahead of time, exactly as `scan.launch` would launch them, and what their machine code holds."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

TARGETS = {
    "sm_80": ("cuda", 80, 32), "sm_86": ("cuda", 86, 32), "sm_89": ("cuda", 89, 32), "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32), "gfx942": ("hip", "gfx942", 64),
}  # fmt: skip
# Bytes of shared memory that a program may have (CUDA C++ Programming Guide 13.0, table "Technical Specifications per
# Compute Capability"; of AMD's MI300 all 64 KiB).
SHARED = {
    "sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024,
    "gfx942": 64 * 1024,
}  # fmt: skip
# A target that differs from another in nothing that Triton asks for: its PTX, which is the other's but for the name, is
# taken from there and assembled anew.
SAME_PTX = {"sm_89": "sm_86"}


class Code(NamedTuple):
    """What a compiled kernel holds."""

    name: str
    text: str  # PTX, or AMD's assembly
    registers: int
    spilled: int  # bytes of memory for what found no register
    scans: int  # parallel scans, whatever they become
    warps: int
    shared: int  # bytes of shared memory
    amd: bool

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.text))

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes, into registers or into shared memory; of 8 too on AMD, whose 64 lanes share a tile."""
        if self.amd:
            return self.count(r"(global|buffer)_load_dwordx[24]")
        return self.count(r"ld\.global[.\w:]*\.v4|cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], 0x10")

    @property
    def wide_stores(self) -> int:
        return self.count(r"(global|buffer)_store_dwordx[24]" if self.amd else r"st\.global[.\w:]*\.v4")

    @property
    def loads(self) -> int:
        return self.count(r"(global|buffer)_load" if self.amd else r"ld\.global|cp\.async\.c[ag]")

    @property
    def stores(self) -> int:
        return self.count(r"(global|buffer)_store" if self.amd else r"st\.global")

    @property
    def shuffles(self) -> int:
        return self.count(r"ds_bpermute|ds_swizzle|_dpp|permlane" if self.amd else r"shfl\.sync")

    @property
    def doubles(self) -> int:
        return self.count(r"_f64" if self.amd else r"\.f64")

    @property
    def barriers(self) -> int:
        return self.count(r"s_barrier" if self.amd else r"bar\.sync|barrier\.sync")

    @property
    def inner_loops(self) -> list[str]:
        """The code of each loop that holds no other, by the comments in which LLVM says so of every block."""
        starts = [
            m.start() for m in re.finditer(r"^(?:(?:\.L|\$L__)BB\d+_\d+|(?:;|//) %bb\.\d+):", self.text, re.MULTILINE)
        ]
        blocks = [self.text[a:b] for a, b in itertools.pairwise([*starts, len(self.text)])]
        loops = {
            re.findall(r"BB\d+_\d+", block)[0]: block for block in blocks if re.search(r"This Inner Loop Header", block)
        }
        for block in blocks:
            within = re.search(r"in Loop: Header=(BB\d+_\d+)", block)
            if within and within[1] in loops:
                loops[within[1]] += block
        return list(loops.values())


class _Driver:
    """Stands in for a GPU that is not there: says for what to compile."""

    def __init__(self, number: int, target: tuple[Any, ...], shared: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.number, self.target, self.shared = number, GPUTarget(*target), shared

    @property
    def utils(self) -> _Driver:
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared, "multiprocessor_count": 80}

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        # Kernels are kept by device: far from the number of any real one.
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(target: str) -> Iterator[list[Any]]:
    """Kernel launches compile for the target instead, and are listed as Triton's compiled kernels."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    launched: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        launched.append(run(self, *arguments, grid=grid, warmup=True, **keywords))

    before, poisoned = driver._active, torch.utils.deterministic.fill_uninitialized_memory
    hip, torch.version.hip = torch.version.hip, "there" if TARGETS[target][0] == "hip" else None
    # Nothing reads what is not launched: memory that no one touches costs nothing, however many rows it has.
    torch.utils.deterministic.fill_uninitialized_memory = False
    driver.set_active(_Driver(1000 + list(TARGETS).index(target), TARGETS[target], SHARED[target]))
    JITFunction.run = compile_only
    try:
        yield launched
    finally:
        JITFunction.run = run
        driver._active = before
        torch.version.hip, torch.utils.deterministic.fill_uninitialized_memory = hip, poisoned


def code_of(target: str, call: Callable[[], object], *, by_itself: bool = False) -> list[Code]:
    """The code of every kernel that `call` would launch; `by_itself`: also where another target has the same PTX."""
    like = None if by_itself else SAME_PTX.get(target)
    with compiling(like or target) as kernels:
        call()
    codes = [_code(kernel) for kernel in kernels]
    if like is None:
        return codes
    return [_assembled(target, like, code, kernel) for code, kernel in zip(codes, kernels, strict=True)]


def _assembled(target: str, like: str, code: Code, kernel: Any) -> Code:
    """What ptxas makes of a kernel for another target."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    text, named = re.subn(rf"\.target {like}\b", f".target {target}", code.text)
    assert named == 1
    _, number, _ = TARGETS[target]
    backend = CUDABackend(GPUTarget(*TARGETS[target]))
    usage = _resources(backend.make_cubin(text, {}, kernel.metadata, number))
    return code._replace(text=text, registers=usage["REG"], spilled=usage["STACK"] + usage["LOCAL"])


def _code(kernel: Any) -> Code:
    name, warps, shared = kernel.metadata.name, kernel.metadata.num_warps, kernel.metadata.shared
    scans = kernel.asm["ttgir"].count('"tt.scan"')
    if "ptx" not in kernel.asm:
        text = kernel.asm["amdgcn"]
        (registers,) = re.findall(r"\.vgpr_count: +(\d+)", text)
        # Scalar registers are spilled to lanes of vector registers, which is no memory.
        (spilled,) = re.findall(r"\.private_segment_fixed_size: +(\d+)", text)
        return Code(name, text, int(registers), int(spilled), scans, warps, shared, True)
    usage = _resources(kernel.asm["cubin"])
    spilled = usage["STACK"] + usage["LOCAL"]
    return Code(name, kernel.asm["ptx"], usage["REG"], spilled, scans, warps, shared, False)


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack and local memory, from NVIDIA's tool in Triton's wheel."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", listing)}


def half(kernels: Sequence[Any], which: int) -> list[Any]:
    """Half of a product of choices between two, which are in order: for `which` 0 or 1 one half or the other.

    One half has an even number of choices other than the first, the other an odd one. So of three choices or more every
    two are met in all four combinations, in either half.
    """
    return [kernel for n, kernel in enumerate(kernels) if n.bit_count() % 2 == which]
