"""Measure the missing cases of a plan, in this process: `python -m experiments.sweep RUN_FOLDER/plan.json`.

The supervisor starts it, with its own process id behind the plan, and restarts it. What ends this process (a broken
CUDA context, a crash) costs the case that was being measured, nothing else: every other record is on the disk already.
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
from experiments.broken_context import says_broken
from experiments.config import Case, ConfigError, Settings
from experiments.device_lock import device_lock
from experiments.events import ENDED, NOTE, STARTED, Events
from experiments.gpu_state import GpuState
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
    "packing": Measurer("experiments.measure", times=True),
    "layouts": Measurer("experiments.measure", times=True),
    "few_rows": Measurer("experiments.measure", times=True),
    "bidirectional": Measurer("experiments.measure", times=True),
    "tuning": Measurer("experiments.tuning", times=True),
    "smoke": Measurer("experiments.measure", times=True),
    "precision": Measurer("experiments.precision", times=False),
    "compile": Measurer("experiments.compile", times=True),
    "memory": Measurer("experiments.memory", times=False),
    "training": Measurer("experiments.training", times=False),
}


class Sweep:
    """The cases of one plan on this machine."""

    def __init__(self, settings: Settings, run_folder: Path, machine: Machine, launcher: int | None = None) -> None:
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
        self.gpu = GpuState(self.machine.uuid) if self.machine.device == "cuda" else None
        self.tracker = Tracker(settings.tracking, Path(settings.outputs))
        # Named by the supervisor, which may be gone by now: PyTorch takes seconds to import.
        self.launcher = os.getppid() if launcher is None else launcher
        opened = self.events.opened()
        self.opened = time.time() if opened is None else opened

    def run(self) -> int:
        """Measure what is missing, failed or stale; the exit status of the process."""
        every_case = self.settings.experiment.cases()
        cases = [case for case in every_case if self.settings.hardware.fits(case)]
        with Progress(self.settings.experiment.stem, len(cases)) as progress:
            if len(cases) < len(every_case):
                left_out = len(every_case) - len(cases)
                progress.say(f"{left_out} cases are left out: they do not fit hardware={self.settings.hardware.name}.")
            missing = self._missing(cases, progress)
            for number, (case, without) in enumerate(missing):
                if os.getppid() != self.launcher:
                    return FAILED  # the supervisor was killed; whoever starts the sweep again takes over
                if self._is_over():
                    progress.say(f"Stopped after {self.settings.limit_minutes:g} minutes, as limit_minutes asks.")
                    for line in left([case for case, _ in missing[number:]]):
                        progress.say(line)
                    break
                measured = self._measure_unless_current(case, without, progress)
                if measured is None:
                    continue
                record, broken = measured
                self.tracker.mirror(record)
                if broken:
                    return CONTEXT_BROKEN
                if store.failures(record) and self.settings.fail_fast:
                    progress.say("Stopped at the first failed case, as fail_fast=true asks.")
                    return FAILED
            count = "1 case" if progress.total == 1 else f"{progress.total} cases"
            progress.say(f"{count}: {progress.counts()}.")
            return FAILED if progress.failed else DONE

    def _missing(self, cases: list[Case], progress: Progress) -> list[tuple[Case, str | None]]:
        """What is to be measured, each case with the provider that it is measured without.

        A case that broke the context is measured once more, last of all, without whoever broke it: the others are not
        to suffer, and a fault of the moment is not to cost a case. Ours is never left out.
        """
        failed_before = {case_id for case_id, failures in self.events.ended().items() if failures}
        to_repeat = {} if self.settings.fail_fast else self.events.to_repeat()
        first: list[tuple[Case, str | None]] = []
        again: list[tuple[Case, str | None]] = []
        for case in cases:
            if case.id in to_repeat:
                culprit = to_repeat[case.id]
                again.append((case, culprit if culprit != "ours" else None))
            elif case.id in failed_before:
                progress.skip_failed()
            elif self._is_current(case):
                progress.reuse()
            else:
                first.append((case, None))
        return first + again

    def _is_over(self) -> bool:
        limit = self.settings.limit_minutes
        return limit is not None and time.time() >= self.opened + 60 * limit

    def _folder(self, case: Case) -> Path:
        return store.folder(self.settings.outputs, case.stem, case.id, self.settings.hardware.name)

    def _is_current(self, case: Case) -> bool:
        return store.state(store.read(self._folder(case) / store.RECORD), self._key(case)) == "current"

    def _measure_unless_current(
        self, case: Case, without: str | None, progress: Progress
    ) -> tuple[dict[str, Any], bool] | None:
        """The record that was measured now, and whether that broke the context.

        None where whoever held the device meanwhile has measured the case.
        """
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
            measured = self._measure(case, folder, without)
            broken = context_is_broken(measured["providers"], self.machine)
            if without is not None:
                result = earlier_result(store.read(path), without)
                measured["providers"] = {
                    name: measured["providers"].get(name, result) for name in self.settings.providers
                }
                measured["protocol"]["measured_without"] = without
            if self.gpu is not None:
                record["provenance"] |= self.gpu.now()
            record |= measured
            store.write(path, record)
        failures = store.failures(record)
        broken_by = record["protocol"].get("context_broken_by")
        self.events.add(ENDED, case_id=case.id, failures=failures, broken=broken, broken_by=broken_by)
        progress.finish(case.id, time.monotonic() - started, outcome(record), bool(failures))
        return record, broken

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
            "provenance": self.provenance | measured_now(),
            "key": self._key(case),
        }

    def _measure(self, case: Case, folder: Path, without: str | None) -> dict[str, Any]:
        """The providers and protocol of a record; an exception becomes the status of every provider."""
        providers = tuple(name for name in self.settings.providers if name != without)
        for old in folder.glob("*traceback.txt"):
            if old.name != f"{without}.traceback.txt":
                old.unlink()

        def emit(event: str, facts: dict[str, Any]) -> None:
            """Notes of the measuring code; `traceback` with `provider` and `text` is kept in the case's folder."""
            if event == "traceback":
                _keep_traceback(folder, f"{facts['provider']}.traceback.txt", facts["text"])
            else:
                self.events.add(NOTE, about=event, **facts)

        try:
            run_case: Callable[..., dict[str, Any]] = importlib.import_module(self.measurer.module).run_case
            measured = run_case(case, providers, self.settings.measure, self.machine.device, emit)
        except Exception as error:
            _keep_traceback(folder, "traceback.txt", traceback.format_exc())
            reason = f"{type(error).__name__}: {error}"
            measured = {"providers": dict.fromkeys(providers, failed_result(reason))}
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
    peers = {name: median for name, median in medians.items() if name != "roofline" and not name.startswith("ours")}
    shown = ["ours"] if "ours" in medians else []
    shown += [min(peers, key=lambda name: peers[name])] if peers else []
    shown += ["roofline"] if "roofline" in medians else []
    words = [f"{name} {medians[name]:.3g} ms" for name in shown]
    words += [f"{name} {record['providers'][name]['status']}" for name in store.failures(record)]
    if not words:
        usable = [name for name, result in record["providers"].items() if result["status"] == "ok"]
        words = [f"{len(usable)} of {len(record['providers'])} providers ok"]
    return ", ".join(words)


def earlier_result(stored: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """The result of the provider that a case is measured without, from the record of the time before."""
    if stored is not None and name in stored["providers"]:
        return stored["providers"][name]
    return failed_result("it broke the CUDA context, and the record of that is gone.")


def left(cases: list[Case]) -> list[str]:
    """What is left, a line for each level and dtype."""
    groups: dict[str, list[str]] = {}
    for case in cases:
        words = " ".join(word for word in (case.level, case.dtype, case.gates) if word)
        groups.setdefault(words, []).append(f"T={case.T} {case.mode}{' channels_last' if case.dim == -2 else ''}")
    lines = [
        f"  {words}: {len(each)} cases, from {each[0]} to {each[-1]}" if len(each) > 1 else f"  {words}: {each[0]}"
        for words, each in groups.items()
    ]
    count = f"{len(cases)} cases are" if len(cases) > 1 else "1 case is"
    return [f"{count} left; the same command goes on from here.", *lines]


def context_is_broken(providers: Mapping[str, Mapping[str, Any]], machine: Machine) -> bool:
    """Whether this process can use its GPU no longer: by what CUDA said, else by asking it."""
    reasons = [str(providers[name].get("reason")) for name in store.failures({"providers": providers})]
    if any(says_broken(reason) for reason in reasons):
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
    """Run the plan in the named file, for as long as the process named behind it lives."""
    plan = Path(arguments[0])
    outputs: Path | str = plan.parent
    try:
        settings = Settings.from_dict(json.loads(plan.read_text(encoding="utf-8")))
        outputs = settings.outputs
        launcher = int(arguments[1]) if len(arguments) > 1 else None
        return Sweep(settings, plan.parent, this_machine(), launcher).run()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    except OSError as error:
        sentence = store.full(error, outputs)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Destructors of a broken CUDA context, and a tracker that hangs, could change the status or never return.
    os._exit(status)
