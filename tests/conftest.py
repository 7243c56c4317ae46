"""What all tests share: the device, seeds, poisoned memory, caches, and which test runs in which process.

`make test` runs two processes. The first runs all tests as a user's process would: scans are computed on the GPU if
there is one, else by the CPU implementation. In the second, Triton's interpreter (TRITON_INTERPRET=1) executes the
kernels, on CPU tensors; every test that uses the fixture `device` runs again there.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETING

hypothesis.settings.register_profile(
    "repository",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repository")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The workers share the cores and, through the environment, the main process's cache.
        torch.set_num_threads(1)
    else:
        config.stash[_CACHE] = os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-cache-")
    config.stash[_SCAN] = "compiled"
    if INTERPRETING and importlib.util.find_spec("triton"):
        from tests.interpreter import quicken

        config.stash[_SCAN] = "interpreted, " + ("quickly" if quicken() else "as Triton does it, which is slow")


_CACHE = pytest.StashKey[str]()
_SCAN = pytest.StashKey[str]()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    return f"device: {device}; Triton kernels: {config.stash[_SCAN]}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "device" in getattr(item, "fixturenames", ()):
            item.add_marker("device")
        if item.get_closest_marker("gpu") and not ON_GPU:
            why = "this process has TRITON_INTERPRET=1" if INTERPRETING else "there is none"
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU, and {why}"))
        if item.get_closest_marker("codegen") and INTERPRETING:
            item.add_marker(pytest.mark.skip(reason="compiles ahead of time: not with TRITON_INTERPRET=1"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which worker of pytest-xdist gets which tests: neighbours share one, and those of the paper are all neighbours.

    So a kernel that some tests look at is compiled once, and no second worker builds the paper for tests of its own.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Neighbours(LoadScopeScheduling):
        def __init__(self) -> None:
            super().__init__(config, log)
            self.units: dict[str, str] = {}
            self.tests: Counter[str] = Counter()

        def _split_scope(self, nodeid: str) -> str:
            if nodeid not in self.units:
                file = nodeid.partition("::")[0]
                built = file.startswith("tests/paper/")
                self.units[nodeid] = "paper" if built else f"{file} {self.tests[file] // 8}"
                self.tests[file] += 1
            return self.units[nodeid]

    config.option.loadscopereorder = False
    return Neighbours()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where tensors of a test live: the GPU if there is one, else the CPU; the CPU under the interpreter."""
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(scope="session")
def kernel_device(device: torch.device) -> torch.device:
    """The same for tests that launch Triton kernels themselves; skips where nothing can execute those."""
    if not ON_GPU and not INTERPRETING:
        pytest.skip("executes Triton kernels: needs a GPU, or TRITON_INTERPRET=1")
    return device


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fill what `torch.empty` and its relatives return with NaN (integers: the largest), so unwritten output shows."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
