"""Keep a sweep going: in a fresh process, and in another when a case ends that one, while that makes progress."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import store
from experiments.config import ConfigError, Settings
from experiments.events import ENDED, OPENED, Events
from experiments.hardware import ROOT
from experiments.sweep import DONE, FAILED, INTERRUPTED, UNUSABLE, failed_result

SWEEP = (sys.executable, "-m", "experiments.sweep")


@dataclass
class Outcome:
    """How a run ended; None while it has not."""

    status: int | None = None


@contextmanager
def claimed(run_folder: Path) -> Iterator[Outcome]:
    """Take a run folder that no other run has used; its `status.json` says how the run ended."""
    run_folder.mkdir(parents=True, exist_ok=True)
    report = run_folder / "status.json"
    try:
        report.open("x").close()
    except FileExistsError:
        raise ConfigError(
            f"The folder {run_folder} holds an earlier run; leave hydra.run.dir alone or name a folder without a run "
            "(records are resumed from outputs, not from there)."
        ) from None
    outcome, problem = Outcome(), None
    try:
        yield outcome
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        raise
    finally:
        store.replace_file(report, json.dumps({"exit_status": outcome.status, "problem": problem}) + "\n")


def supervise(settings: Settings, run_folder: Path, command: Sequence[str] = SWEEP) -> int:
    """Run all cases of the settings; the exit status is 0 only if every case has a record without failures."""
    plan = run_folder / "plan.json"
    store.replace_file(plan, json.dumps(settings.to_dict(), indent=1) + "\n")
    events = Events(run_folder)
    events.add(OPENED, at=time.time())
    while True:
        ended_before = events.count(ENDED)
        status = subprocess.run([*command, str(plan), str(os.getpid())], cwd=ROOT, check=False).returncode
        if status in (DONE, FAILED, UNUSABLE, INTERRUPTED):
            return status
        _record_crash(events, settings, status)
        if events.count(ENDED) == ended_before:
            print(f"error: The sweep ended {_how(status)} without measuring anything; see above.", file=sys.stderr)
            return FAILED
        if settings.fail_fast:
            print("Stopped at the first failed case, as fail_fast=true asks.", flush=True)
            return FAILED
        print(f"The sweep ended {_how(status)}; it goes on in a fresh process.", flush=True)


def _record_crash(events: Events, settings: Settings, status: int) -> None:
    """Give the case that was being measured when the process died a record that says so."""
    start = events.in_flight()
    if start is None:
        return
    path, frame = Path(start["path"]), start["frame"]
    stored = store.read(path)
    if stored is None or stored["key"] != frame["key"] or not _same_start(stored, frame):
        note = start["last_note"] or {}
        measured = note.get("providers") or [note.get("provider", "its first provider")]
        reason = f"The process ended {_how(status)} while it measured {', '.join(measured)}."
        providers = {name: failed_result(reason) for name in settings.providers}
        stored = {**frame, "providers": providers}
        store.write(path, stored)
        (path.parent / "traceback.txt").write_text(f"No traceback. {reason}\n", encoding="utf-8")
    events.add(ENDED, case_id=start["case_id"], failures=store.failures(stored))


def _same_start(stored: dict[str, Any], frame: dict[str, Any]) -> bool:
    return stored["provenance"]["measured_at"] == frame["provenance"]["measured_at"]


def _how(status: int) -> str:
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
