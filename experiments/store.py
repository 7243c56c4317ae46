"""Where a record lies, whether it still counts, and how it is written so that no moment of a kill can tear it."""

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD = "record.json"
FAILED_STATUSES = ("error",)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def folder(outputs: Path | str, stem: str, case_id: str, hardware: str) -> Path:
    """The folder of a case; one of each machine, so that two machines can share their outputs."""
    return Path(outputs) / stem / f"{case_id}-{hardware}"


def read(path: Path) -> dict[str, Any] | None:
    """The record in a file; None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def state(record: Mapping[str, Any] | None, key: str) -> str:
    """`missing`, `stale` (measured from other sources, versions or settings), `failed` or `current`."""
    if record is None:
        return "missing"
    if record.get("key") != key:
        return "stale"
    return "failed" if failures(record) else "current"


def failures(record: Mapping[str, Any]) -> list[str]:
    """The providers for which a case counts as failed: whoever ended in an error, and ours if its values are wrong."""
    return [
        name
        for name, result in record["providers"].items()
        if result["status"] in FAILED_STATUSES or (name.startswith("ours") and result["status"] == "wrong")
    ]


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Put a record in place at once; a stale one is kept beside it as `replaced-<its key>.json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    old = read(path)
    if old is not None and old.get("key") != record["key"]:
        replace_file(path.with_name(f"replaced-{str(old.get('key'))[:12]}.json"), path.read_text(encoding="utf-8"))
    replace_file(path, json.dumps(finite(record), allow_nan=False) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a file under a temporary name in its folder, force it to the disk, rename it."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk, a part of a record would be in the way of whole ones
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself survives a power cut only once the directory is on the disk
    finally:
        os.close(directory)


def full(error: OSError, outputs: Path | str) -> str | None:
    """What to do where a write failed for want of room, in one sentence; None where it failed for another reason."""
    if error.errno not in NO_ROOM:
        return None
    return (
        f"There is no room left to write below {outputs} ({error.strerror}); make room and start the same command "
        "again, every record that was written is kept."
    )


def unwritable(outputs: Path) -> str | None:
    """Why nothing can be written below a folder that may not be there yet, in one sentence; None where it can."""
    there = next(folder for folder in (outputs, *outputs.absolute().parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return None
    why = "it may not be written" if there.is_dir() else "it is a file"
    return (
        f"expected a folder for records, but outputs={outputs} is none ({there}: {why}): name another by outputs=PATH "
        "or by the environment variable SCAN_OUTPUTS."
    )


def finite(value: Any) -> Any:
    """The value with None for infinities and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
