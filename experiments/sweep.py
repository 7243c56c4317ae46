"""Measure the missing cases of a plan, in this process: `python -m experiments.sweep RUN_FOLDER/plan.json`.

The supervisor starts it and restarts it. What ends this process (a broken CUDA context, a crash) costs the case that
was being measured, nothing else: every other record is on the disk already.
"""

import dataclasses
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import store
from experiments.config import Case, ConfigError, Settings
from experiments.device_lock import device_lock
from experiments.events import ENDED, NOTE, STARTED, Events
from experiments.hardware import Machine, check, this_machine
from experiments.progress import Progress
from experiments.provenance import collect_provenance, key_of, measured_now
from experiments.records import SCHEMA
from experiments.tracking import Tracker

DONE, FAILED, UNUSABLE, CONTEXT_BROKEN, INTERRUPTED = 0, 1, 2, 75, 130


@dataclass(frozen=True)
class Measurer:
    """The module whose `run_case` measures a stem, and whether it times, so that `measure` changes its numbers."""

    module: str
    times: bool


MEASURERS = {
    "speed": Measurer("experiments.measure", times=True),
    "smoke": Measurer("experiments.measure", times=True),
    "precision": Measurer("experiments.precision", times=False),
}

# What CUDA says once a context can launch nothing more.
BROKEN_CONTEXT = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "illegal instruction",
    "unspecified launch failure",
    "hardware stack error",
    "uncorrectable ecc error",
    "invalid program counter",
)


class Sweep:
    """The cases of one plan on this machine."""

    def __init__(self, settings: Settings, run_folder: Path, machine: Machine) -> None:
        if settings.experiment.stem not in MEASURERS:
            known = ", ".join(MEASURERS)
            raise ConfigError(f"experiment.stem must be one of {known}, got {settings.experiment.stem!r}.")
        check(settings.hardware, machine)
        self.settings = settings
        self.machine = machine if settings.hardware.device == "cuda" else Machine("cpu")
        self.events = Events(run_folder)
        self.measurer = MEASURERS[settings.experiment.stem]
        self.choices = {"measure": dataclasses.asdict(settings.measure)} if self.measurer.times else {}
        self.provenance = collect_provenance(self.machine)
        self.tracker = Tracker(settings.tracking, Path(settings.outputs))
        self.launcher = os.getppid()

    def run(self) -> int:
        """Measure what is missing, failed or stale; the exit status of the process."""
        every_case = self.settings.experiment.cases()
        cases = [case for case in every_case if self.settings.hardware.fits(case)]
        failed_before = {case_id for case_id, failures in self.events.ended().items() if failures}
        with Progress(self.settings.experiment.stem, len(cases)) as progress:
            if len(cases) < len(every_case):
                left_out = len(every_case) - len(cases)
                progress.say(f"{left_out} cases are left out: they do not fit hardware={self.settings.hardware.name}.")
            missing = []
            for case in cases:
                if case.id in failed_before:
                    progress.skip_failed()
                elif self._is_current(case):
                    progress.reuse()
                else:
                    missing.append(case)
            for case in missing:
                if os.getppid() != self.launcher:
                    return FAILED  # the supervisor was killed; whoever starts the sweep again takes over
                record = self._measure_unless_current(case, progress)
                if record is None:
                    continue
                self.tracker.mirror(record)
                if context_is_broken(record, self.machine):
                    return CONTEXT_BROKEN
                if store.failures(record) and self.settings.fail_fast:
                    progress.say("Stopped at the first failed case, as fail_fast=true asks.")
                    return FAILED
            progress.say(f"{progress.total} cases: {progress.counts()}.")
            return FAILED if progress.failed else DONE

    def _folder(self, case: Case) -> Path:
        return store.folder(self.settings.outputs, case.stem, case.id, self.settings.hardware.name)

    def _is_current(self, case: Case) -> bool:
        return store.state(store.read(self._folder(case) / store.RECORD), self._key(case)) == "current"

    def _measure_unless_current(self, case: Case, progress: Progress) -> dict[str, Any] | None:
        """The record that was measured now; None where whoever held the device meanwhile has measured the case."""
        folder = self._folder(case)
        path = folder / store.RECORD
        waiting = f"Waiting: another process measures on {self.machine.name or 'this CPU'}."
        with device_lock(self.machine.uuid or "cpu", lambda: progress.say(waiting)):
            if self._is_current(case):
                progress.reuse()
                return None
            started = time.monotonic()
            record = self._frame(case)
            self.events.add(STARTED, case_id=case.id, path=str(path), frame=record)
            record |= self._measure(case, folder)
            store.write(path, record)
        failures = store.failures(record)
        self.events.add(ENDED, case_id=case.id, failures=failures)
        progress.finish(case.id, time.monotonic() - started, outcome(record), bool(failures))
        return record

    def _key(self, case: Case) -> str:
        providers = list(self.settings.providers)
        return key_of(dataclasses.asdict(case), self.provenance, {"providers": providers, **self.choices})

    def _frame(self, case: Case) -> dict[str, Any]:
        """A record without its measurements."""
        return {
            "schema": SCHEMA,
            "stem": case.stem,
            "hardware": self.settings.hardware.name,
            "case_id": case.id,
            "case": dataclasses.asdict(case),
            "providers": dict.fromkeys(self.settings.providers),
            "protocol": dict(self.choices),
            "provenance": self.provenance | measured_now(self.machine),
            "key": self._key(case),
        }

    def _measure(self, case: Case, folder: Path) -> dict[str, Any]:
        """The providers and protocol of a record; an exception becomes the status of every provider."""
        for old in folder.glob("*traceback.txt"):
            old.unlink()

        def emit(event: str, facts: dict[str, Any]) -> None:
            """Notes of the measuring code; `traceback` with `provider` and `text` is kept in the case's folder."""
            if event == "traceback":
                _keep_traceback(folder, f"{facts['provider']}.traceback.txt", facts["text"])
            else:
                self.events.add(NOTE, about=event, **facts)

        try:
            run_case: Callable[..., dict[str, Any]] = importlib.import_module(self.measurer.module).run_case
            measured = run_case(case, self.settings.providers, self.settings.measure, self.machine.device, emit)
        except Exception as error:
            _keep_traceback(folder, "traceback.txt", traceback.format_exc())
            reason = f"{type(error).__name__}: {error}"
            measured = {"providers": dict.fromkeys(self.settings.providers, failed_result(reason))}
        return {"providers": measured["providers"], "protocol": {**measured.get("protocol", {}), **self.choices}}


def failed_result(reason: str) -> dict[str, Any]:
    """The result of a provider that could not be measured."""
    return {"status": "error", "reason": reason}


def outcome(record: Mapping[str, Any]) -> str:
    """A record in a few words: the median times of ours, the fastest peer and the roofline, and who failed."""
    medians = {
        name: statistics.median(result["samples_ms"])
        for name, result in record["providers"].items()
        if result.get("samples_ms")
    }
    peers = {name: median for name, median in medians.items() if name not in ("ours", "roofline")}
    shown = ["ours"] if "ours" in medians else []
    shown += [min(peers, key=lambda name: peers[name])] if peers else []
    shown += ["roofline"] if "roofline" in medians else []
    words = [f"{name} {medians[name]:.3g} ms" for name in shown]
    words += [f"{name} {record['providers'][name]['status']}" for name in store.failures(record)]
    if not words:
        usable = [name for name, result in record["providers"].items() if result["status"] == "ok"]
        words = [f"{len(usable)} of {len(record['providers'])} providers ok"]
    return ", ".join(words)


def context_is_broken(record: Mapping[str, Any], machine: Machine) -> bool:
    """Whether this process can use its GPU no longer: by what CUDA said, else by asking it."""
    reasons = [str(record["providers"][name].get("reason")).lower() for name in store.failures(record)]
    if any(sign in reason for reason in reasons for sign in BROKEN_CONTEXT):
        return True
    if not reasons or machine.device != "cuda":
        return False
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:
        return True
    return False


def _keep_traceback(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run the plan in the named file."""
    plan = Path(arguments[0])
    try:
        settings = Settings.from_dict(json.loads(plan.read_text(encoding="utf-8")))
        return Sweep(settings, plan.parent, this_machine()).run()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Destructors of a broken CUDA context, and a tracker that hangs, could change the status or never return.
    os._exit(status)
