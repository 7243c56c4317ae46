"""Which devices this machine has, and whether the first is the one that the settings expect.

`python -m experiments.hardware` prints them as JSON: the entry point asks in a process of its own, because a CUDA
context in the supervising process would hold memory of the GPU for the whole sweep.
"""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config import ConfigError, Hardware

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """What PyTorch reports: `cuda` with the GPU's name, memory and identity, or `cpu`."""

    device: str
    name: str | None = None
    memory_gib: float | None = None
    uuid: str | None = None


def this_machine(index: int = 0) -> Machine:
    """Ask PyTorch, in this process, for its first GPU or for the one with this index."""
    import torch

    if not torch.cuda.is_available():
        return Machine("cpu")
    properties = torch.cuda.get_device_properties(index)
    return Machine("cuda", properties.name, round(properties.total_memory / 2**30, 1), str(properties.uuid))


def these_machines() -> list[Machine]:
    """The same for every GPU that PyTorch sees, or for the CPU."""
    import torch

    return [this_machine(index) for index in range(max(torch.cuda.device_count(), 1))]


def ask_this_machine() -> Machine:
    """Ask PyTorch for the first device, in a process of its own."""
    return ask_these_machines()[0]


def ask_these_machines() -> list[Machine]:
    """Ask PyTorch for every device, in a process of its own."""
    asked = subprocess.run(
        [sys.executable, "-m", "experiments.hardware"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"The device of this machine could not be asked for ({last}); name it, as in hardware=cpu.")
    return [Machine(**each) for each in json.loads(asked.stdout.splitlines()[-1])]


def overrides_for(machine: Machine, presets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The overrides that turn hardware=auto into the machine's preset, or a plain one named after an unknown GPU."""
    if machine.device == "cpu":
        return ["hardware=cpu"]
    name = machine.name or "unnamed GPU"
    for preset, values in presets.items():
        expected = values.get("device_name")
        if expected and expected.lower() in name.lower():
            return [f"hardware={preset}"]
    slug = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return [
        "hardware=auto",
        f"hardware.name={slug}",
        "hardware.device=cuda",
        f"++hardware.device_name={json.dumps(name)}",
        f"++hardware.memory_gib={json.dumps(machine.memory_gib)}",
    ]


def check(hardware: Hardware, machine: Machine) -> None:
    """Stop with a sentence where the settings are meant for another machine; a CPU sweep runs anywhere."""
    if hardware.device == "cpu":
        return
    advice = "take hardware=auto or the preset of this machine"
    expected = f"a GPU whose name contains {hardware.device_name!r}" if hardware.device_name else "a CUDA GPU"
    if machine.device != "cuda":
        raise ConfigError(f"hardware={hardware.name} expects {expected}, but PyTorch sees no GPU here; {advice}.")
    if hardware.device_name and hardware.device_name.lower() not in str(machine.name).lower():
        raise ConfigError(f"hardware={hardware.name} expects {expected}, but this one is {machine.name!r}; {advice}.")


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(each) for each in these_machines()]))
