"""The GPU's driver, clocks and users at this moment, from nvidia-ml-py, else nvidia-smi, else None with the reason."""

import os
import subprocess
import time
from typing import Any

FACTS = ("driver", "sm_clock_mhz", "memory_clock_mhz", "other_gpu_processes")
# An answer counts for this many times as long as it took: nvidia-smi needs up to a second, nvidia-ml-py a millisecond.
_COUNTS_FOR = 20


class GpuState:
    """The facts about one GPU, asked again only where asking costs little of the time since."""

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid
        self._answer: dict[str, Any] = {}
        self._until = 0.0

    def now(self) -> dict[str, Any]:
        """The facts, at most a few seconds old."""
        began = time.monotonic()
        if not self._answer or began >= self._until:
            self._answer = gpu_state(self.uuid)
            ended = time.monotonic()
            self._until = ended + _COUNTS_FOR * (ended - began)
        return self._answer


def gpu_state(uuid: str | None) -> dict[str, Any]:
    """The facts named in `FACTS`, and `gpu_state_reason`: why some of them are None."""
    reasons = []
    for ask in (_from_nvml, _from_nvidia_smi):
        try:
            facts, processes = ask(f"GPU-{str(uuid).removeprefix('GPU-')}")
        except Exception as error:
            reasons.append(f"{ask.__name__.removeprefix('_from_')}: {type(error).__name__}: {error}")
            continue
        others, reason = other_processes(processes, os.getpid())
        return {**facts, "other_gpu_processes": others, "gpu_state_reason": reason}
    return {**dict.fromkeys(FACTS), "gpu_state_reason": "; ".join(reasons)}


def other_processes(seen: list[int], own: int) -> tuple[list[int] | None, str | None]:
    """The processes on the GPU but this one.

    A container hides the machine's process ids: then one process may well be this one, and more cannot be told apart.
    """
    if own in seen or not seen:
        return sorted(set(seen) - {own}), None
    if len(seen) == 1:
        return [], "one process is on the GPU, under another id than this process has in its container: taken to be it"
    return None, f"{len(seen)} processes are on the GPU, none under the id that this process has in its container"


def _from_nvml(uuid: str) -> tuple[dict[str, Any], list[int]]:
    import pynvml

    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        facts = {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        }
        return facts, [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    finally:
        pynvml.nvmlShutdown()


def _from_nvidia_smi(uuid: str) -> tuple[dict[str, Any], list[int]]:
    driver, sm_clock, memory_clock = _query(uuid, "--query-gpu=driver_version,clocks.sm,clocks.mem").split(",")
    facts = {"driver": driver.strip(), "sm_clock_mhz": int(sm_clock), "memory_clock_mhz": int(memory_clock)}
    return facts, [int(line) for line in _query(uuid, "--query-compute-apps=pid").split()]


def _query(uuid: str, question: str) -> str:
    command = ["nvidia-smi", question, "--format=csv,noheader,nounits", f"--id={uuid}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
