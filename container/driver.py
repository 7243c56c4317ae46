"""Can the GPU of this machine run what is in the image? Asked of the driver itself, before PyTorch is imported."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

# What requirements/image.txt and the base image were made for; tests/test_container.py compares them.
CUDA = (13, 0)
DRIVER = 580
CAPABILITY = (8, 0)

NO_DEVICE = 100
CAPABILITY_ATTRIBUTES = (75, 76)
# Results of cuInit that have a cure.
CURES = {
    802: "The GPUs of this machine are not ready: start nvidia-fabricmanager on the host",
    803: "The NVIDIA driver of this machine was updated while it ran: restart the host",
    804: f"The NVIDIA driver of this machine is too old for this image: install version {DRIVER} or newer on the host",
}
WITHOUT = "or run without --gpus, which builds the paper from its stored results."

VERSION_FILE = Path("/proc/driver/nvidia/version")
CONTROL_DEVICE = Path("/dev/nvidiactl")


class Unusable(RuntimeError):
    """There is a GPU, and this image cannot use it; the message names the fix."""


def driver_library() -> ctypes.CDLL | None:
    """The driver, which the container runtime puts beside the image's own libraries; None without a GPU."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        if CONTROL_DEVICE.exists():
            raise Unusable(
                "The GPU's devices are in this container and the driver's library libcuda.so.1 is not: install the "
                f"NVIDIA Container Toolkit on the host and run with --gpus all, {WITHOUT}"
            ) from None
        return None


def host_driver() -> str:
    """The version of the host's driver in brackets, as far as it is known."""
    try:
        found = re.search(r"\s(\d+(?:\.\d+)+)\s", VERSION_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return f" ({found[1]})" if found else ""


def check(library: ctypes.CDLL | None) -> str | None:
    """One line about the GPU that will be used; None where there is none; raises `Unusable`."""
    if library is None:
        return None
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    supported = (number.value // 1000, number.value % 1000 // 10)
    if supported < CUDA:
        raise Unusable(
            f"The NVIDIA driver of this machine{host_driver()} supports CUDA {_dotted(supported)}, and this image "
            f"needs {_dotted(CUDA)}: install driver {DRIVER} or newer on the host, {WITHOUT}"
        )
    result = library.cuInit(0)
    if result == NO_DEVICE:
        return None
    if result:
        cure = CURES.get(
            result, f"The NVIDIA driver of this machine answers error {result}: see if nvidia-smi works there"
        )
        raise Unusable(f"{cure}, {WITHOUT}")
    capability, name = _capability(library), _name(library)
    if capability < CAPABILITY:
        raise Unusable(
            f"The kernels need a GPU of compute capability {_dotted(CAPABILITY)} or newer (A100, RTX 30 and later), "
            f"and {name} has {_dotted(capability)}: choose another one with --gpus device=N, {WITHOUT}"
        )
    return f"{name}, compute capability {_dotted(capability)}, driver{host_driver()} for CUDA {_dotted(supported)}"


def _capability(library: ctypes.CDLL) -> tuple[int, int]:
    values = []
    for attribute in CAPABILITY_ATTRIBUTES:
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        values.append(value.value)
    return values[0], values[1]


def _name(library: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(256)
    library.cuDeviceGetName(text, len(text), 0)
    return text.value.decode(errors="replace")


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
