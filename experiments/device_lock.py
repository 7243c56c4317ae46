"""One measuring process at a time on a device, so that parallel launchers wait instead of timing each other."""

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_path(device_id: str) -> Path:
    """The lock file of a device, the same for every user and checkout of this machine."""
    return Path(tempfile.gettempdir()) / f"linear-scan-{re.sub(r'[^A-Za-z0-9]+', '-', device_id)}.lock"


@contextmanager
def device_lock(device_id: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the device; `on_wait` is called once if somebody else does. A killed holder lets go by dying."""
    path = lock_path(device_id)
    try:
        # Kernels with fs.protected_regular refuse O_CREAT on another user's file in /tmp, and reading suffices to lock.
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
