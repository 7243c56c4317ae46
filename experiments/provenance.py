"""Where a number comes from: the sources, the versions, the machine and what else it was doing.

Every fact that cannot be found is None, with the reason beside it where the reader may wonder.
"""

import hashlib
import importlib.metadata
import io
import os
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.config import digest
from experiments.gpu_state import gpu_state
from experiments.hardware import ROOT, Machine

MEASURED_SOURCES = ("scan", "experiments", "conf")
# What changes a number when it is edited: how inputs are drawn, providers called, results judged and times taken.
MEASURING = (
    "bench.py",
    "candidates.py",
    "compile.py",
    "compile_block.py",
    "correctness.py",
    "inputs.py",
    "measure.py",
    "memory.py",
    "pace.py",
    "precision.py",
    "providers/",
    "roofline.py",
    "roofline_kernels.py",
    "timing.py",
    "training.py",
    "training_model.py",
    "truth.py",
    "tuning.py",
)
SOURCE_SUFFIXES = (".py", ".yaml")
PACKAGES = (
    "accelerated-scan",
    "associative-scan-triton",
    "fla-core",
    "jax",
    "jaxlib",
    "linrec",
    "numpy",
)
KEY_FACTS = (
    "gpu",
    "cpu",
    "cpu_threads",
    "compute_capability",
    "driver",
    "cuda",
    "torch",
    "triton",
    "python",
    "source_hash",
    "measuring_hash",
    "packages",
)


def collect_provenance(machine: Machine) -> dict[str, Any]:
    """The facts that hold for a whole process; the sweep adds those of the moment."""
    import torch

    capability = ".".join(map(str, torch.cuda.get_device_capability(0))) if machine.device == "cuda" else None
    cuda = torch.version.cuda if machine.device == "cuda" else None
    return {
        "gpu": machine.name,
        "gpu_memory_gib": machine.memory_gib,
        "compute_capability": capability,
        "driver": gpu_state(machine.uuid)["driver"] if machine.device == "cuda" else None,
        "cuda": cuda,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cpu_threads": torch.get_num_threads(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        **sources(ROOT),
    }


def measured_now() -> dict[str, Any]:
    """The moment."""
    return {"measured_at": datetime.now(UTC).isoformat(timespec="milliseconds")}


def key_of(case: Mapping[str, Any], provenance: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """The unit of resume: equal keys mean that measuring again would repeat the same measurement."""
    facts = {name: provenance.get(name) for name in KEY_FACTS}
    return digest({"case": dict(case), "facts": facts, "choices": dict(choices)})


def sources(root: Path) -> dict[str, Any]:
    """Commit, whether what was measured differs from it, and hashes of the library and of all that decides a number.

    Without git (a copied tree), the commit is what the environment variable SCAN_COMMIT says.
    """
    measured = sources_in(root, MEASURED_SOURCES)
    measuring = tuple(f"experiments/{name}" for name in MEASURING)
    facts: dict[str, Any] = {"commit": None, "dirty": None}
    facts |= {
        "source_hash": hash_of_files(_below(measured, ("scan/",))),
        "measuring_hash": hash_of_files(_below(measured, measuring)),
        "measured_sources_hash": hash_of_files(measured),
    }
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD") if top and Path(top).resolve() == root.resolve() else None
    if commit is None:
        return facts | {"commit": os.environ.get("SCAN_COMMIT")}
    changed = _git(root, "status", "--porcelain", "--", *MEASURED_SOURCES)
    return facts | {"commit": commit, "dirty": None if changed is None else bool(changed)}


def sources_in(root: Path, folders: Sequence[str]) -> dict[str, bytes]:
    """The Python and YAML files of a working tree's folders, by their path in it."""
    files = [file for folder in folders for file in (root / folder).rglob("*") if file.suffix in SOURCE_SUFFIXES]
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in files}


def _below(files: Mapping[str, bytes], paths: tuple[str, ...]) -> dict[str, bytes]:
    return {name: file for name, file in files.items() if name.startswith(paths)}


def sources_at(root: Path, commit: str, folders: Sequence[str]) -> dict[str, bytes] | None:
    """The same at a commit; None where git does not know it."""
    made = subprocess.run(["git", "-C", str(root), "archive", commit, *folders], capture_output=True, check=False)
    if made.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers() if member.isfile()}
        return {name: file.read() for name, file in files.items() if file and Path(name).suffix in SOURCE_SUFFIXES}


def hash_of_files(files: Mapping[str, bytes]) -> str:
    """One hash of names and contents, whatever the order of listing."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


def cpu_model() -> str:
    """The processor's name as Linux reports it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: Path, *words: str) -> str | None:
    # With git's optional lock, a commit made at the same moment would be refused.
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
