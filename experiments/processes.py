"""The processes of a reproduction: one after the other, or sweeps side by side, each alone on its GPU.

Output of sweeps side by side is shown line by line, behind the name of the sweep that wrote it. It goes through a file
and not a pipe, so that nothing waits for a helper that a sweep leaves behind.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from experiments.config import ConfigError
from experiments.hardware import ROOT, Machine
from experiments.progress import duration

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOK_EVERY_S = 0.2
GRACE_S = 3
"""How long an interrupted sweep may take to end by itself."""


@dataclass(frozen=True)
class Job:
    """A process to be started: the word for its lines, its title and command, and the minutes it was given."""

    name: str
    title: str
    command: list[str]
    limit_minutes: float | None = None


@dataclass
class Step:
    """One process of a reproduction: how it ended and how long it took."""

    title: str
    status: int
    seconds: float
    limit_minutes: float | None = None


@dataclass
class Steps:
    """All that have ended, in the order of their ends."""

    done: list[Step] = field(default_factory=list)

    def run(self, job: Job) -> None:
        """Run one with its output shown."""
        print(f"\n== {job.title}\n{' '.join(job.command)}", flush=True)
        started = time.monotonic()
        status = run(job.command)
        self._ended(job, status, time.monotonic() - started)

    def run_side_by_side(self, jobs: Iterator[Job], gpus: Sequence[str]) -> None:
        """Run all, each alone on one of the GPUs; whichever is free takes the next job."""
        free, running = list(gpus), list[Running]()
        try:
            while True:
                while free and (job := next(jobs, None)):
                    gpu = free.pop(0)
                    print(f"\n== {job.title}\n{VISIBLE}={gpu} {' '.join(job.command)}", flush=True)
                    running.append(Running(job, gpu))
                if not running:
                    return
                time.sleep(LOOK_EVERY_S)
                for each in list(running):
                    status = each.look()
                    if status is not None:
                        running.remove(each)
                        free.append(each.gpu)
                        self._ended(each.job, status, time.monotonic() - each.started)
        finally:
            end(running)

    def _ended(self, job: Job, status: int, seconds: float) -> None:
        self.done.append(Step(job.title, status, seconds, job.limit_minutes))
        print(f"== {job.title}: {duration(seconds)}, exit status {status}", flush=True)


def run(command: list[str]) -> int:
    """A process of its own; its exit status."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            return process.wait()
        finally:
            stop([process])


class Running:
    """A process that sees one GPU, and how much of its output was shown."""

    def __init__(self, job: Job, gpu: str) -> None:
        self.job, self.gpu, self.started = job, gpu, time.monotonic()
        self._shown = 0
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this)
        self.process = subprocess.Popen(
            job.command,
            cwd=ROOT,
            env=os.environ | {VISIBLE: gpu},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def look(self) -> int | None:
        """Show the lines that are new, and the exit status if there is one."""
        status = self.process.poll()
        size = os.fstat(self._output.fileno()).st_size
        # The process writes at the offset that both share: pread leaves it alone.
        new = os.pread(self._output.fileno(), size - self._shown, self._shown)
        if status is None:
            new = new[: new.rfind(b"\n") + 1]
        self._shown += len(new)
        for line in new.decode(errors="replace").splitlines():
            print(f"{self.job.name} | {line}", flush=True)
        return status


def end(running: Sequence[Running]) -> None:
    """End what still runs, and show what it wrote."""
    stop([each.process for each in running])
    for each in running:
        each.look()


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs. A terminal interrupts the sweeps too: only what goes on is interrupted from here."""
    for ending in (None, signal.SIGINT, signal.SIGKILL):
        left = [each for each in processes if each.poll() is None]
        if ending is not None:
            for process in left:
                process.send_signal(ending)
        until = time.monotonic() + GRACE_S
        for process in left:
            try:
                process.wait(max(until - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                continue


def number_of_gpus(asked: str) -> int:
    """What --gpus asks for."""
    number = int(asked) if asked.isascii() and asked.isdigit() else 0
    if number < 1:
        raise ConfigError(
            f"--gpus expects how many GPUs to use, a whole number from 1 on, got {asked!r}; leave it out for one."
        )
    return number


def gpus_to_use(number: int, found: Sequence[Machine]) -> list[str]:
    """For each of so many GPUs of one kind, the first that PyTorch sees, its entry in CUDA_VISIBLE_DEVICES."""
    seen = [each for each in found if each.device == "cuda"]
    if number > len(seen):
        advice = f"take --gpus {len(seen)}" if len(seen) > 1 else "leave --gpus out"
        visible = os.environ.get(VISIBLE)
        if visible is not None:
            advice += f", or name more in {VISIBLE}, which is {visible!r}"
        count = len(seen) or "none"
        raise ConfigError(f"--gpus {number} expects {number} GPUs, but PyTorch sees {count} here; {advice}.")
    kinds = list(dict.fromkeys(str(each.name) for each in seen[:number]))
    if len(kinds) > 1:
        raise ConfigError(
            f"--gpus {number} expects GPUs of one kind, but the first {number} here are of {len(kinds)}: "
            f"{', '.join(kinds)}; name those of one kind in {VISIBLE}."
        )
    entries = os.environ.get(VISIBLE, ",".join(map(str, range(number)))).split(",")
    return [entry.strip() for entry in entries[:number]]
