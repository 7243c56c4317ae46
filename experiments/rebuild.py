"""Records from what wandb runs hold of them: the same files as the sweep wrote, whichever runs are left."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments import store
from experiments.config import ConfigError
from experiments.records import SCHEMA

FIELDS = ("stem", "hardware", "case_id", "case", "providers", "protocol", "provenance", "key")


def in_folder(runs: Path) -> Iterator[tuple[str, str]]:
    """The folder and the record's text of every run below a folder that has one."""
    if not runs.is_dir():
        raise ConfigError(f"Records are rebuilt from a folder of wandb runs such as outputs/wandb, and {runs} is none.")
    for file in sorted(runs.rglob(f"*run-*/files/{store.RECORD}")):
        yield str(file.parents[1]), file.read_text(encoding="utf-8")


def write(found: Iterable[tuple[str, str]], outputs: Path) -> tuple[int, list[tuple[str, str]]]:
    """How many records were written, oldest first, and which runs hold none that can be used, with the reason.

    Of several measurements of one case the newest becomes its record, and those under other keys are kept beside it, as
    a sweep leaves them. What lies in the outputs already and is as new stays as it is.
    """
    records: list[dict[str, Any]] = []
    unusable: list[tuple[str, str]] = []
    for name, text in found:
        record, why = _read(text)
        if record is None:
            unusable.append((name, why))
        else:
            records.append(record)
    written = 0
    for record in sorted(records, key=_measured_at):
        path = store.folder(outputs, record["stem"], record["case_id"], record["hardware"]) / store.RECORD
        stored = store.read(path)
        if stored is None or _measured_at(stored) < _measured_at(record):
            store.write(path, record)
            written += 1
    return written, unusable


def _read(text: str) -> tuple[dict[str, Any] | None, str]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        return None, f"its record is torn ({error})."
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        return None, f"its record has another schema than {SCHEMA}."
    missing = [field for field in FIELDS if field not in record]
    return (None, f"its record has no {', '.join(missing)}.") if missing else (record, "")


def _measured_at(record: dict[str, Any]) -> str:
    return str(record["provenance"].get("measured_at"))
