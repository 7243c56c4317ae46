"""Mirror records to Weights & Biases; the only module that imports wandb, and only when there is something to mirror.

A record is on the disk before it is mirrored, so whatever goes wrong here is a warning. `python -m experiments.tracking
mirror outputs` mirrors stored records afterwards, for instance those of a machine without wandb.
"""

import argparse
import logging
import math
import netrc
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from experiments.config import ConfigError, Tracking
from experiments.records import load, tidy
from experiments.store import failures

PATIENCE_S = 60.0
"""After this long wandb is given up: for a whole call, and so for any chain of fallbacks inside it."""

log = logging.getLogger(__name__)


class Tracker:
    """One wandb run a record; after the first failure nothing more is mirrored."""

    def __init__(self, tracking: Tracking, outputs: Path) -> None:
        self.tracking = tracking
        self.outputs = outputs
        self._mode: str | None = "disabled" if tracking.mode == "disabled" else None
        """What the mode came to; None until the first record, because asking a server takes time."""

    def mirror(self, record: Mapping[str, Any]) -> bool:
        """Mirror one record; False, and a warning, where that was not possible."""
        if self._mode is None:
            self._mode = usable_mode(self.tracking.mode)
        if self._mode == "disabled":
            return False
        mode = self._mode
        problem = _bounded(lambda: self._log(record, mode), PATIENCE_S)
        if problem is not None:
            self._mode = "disabled"
            log.warning(
                "Tracking is off from here on (%s); records are complete, and "
                "`python -m experiments.tracking mirror %s` mirrors them later.",
                problem,
                self.outputs,
            )
        return problem is None

    def has_mirrored(self, record: Mapping[str, Any]) -> bool:
        """Whether a run of that record lies in the folder of mirrored runs."""
        return any((self.outputs / "wandb").glob(f"*run-*-{run_id(record)}"))

    def _log(self, record: Mapping[str, Any], mode: str) -> None:
        import wandb

        self.outputs.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=self.tracking.project,
            id=run_id(record),
            name=record["case_id"],
            group=record["stem"],
            tags=[record["hardware"], record["stem"]],
            config={"case": record["case"], "protocol": record["protocol"], "provenance": record["provenance"]},
            dir=str(self.outputs),
            mode="online" if mode == "online" else "offline",
            resume="allow",
            reinit="finish_previous",
            settings=wandb.Settings(
                # Its samplers would read the clocks of the GPU that the next case is timed on.
                x_disable_stats=True,
                x_disable_machine_info=True,
                disable_git=True,
                console="off",
                silent=True,
                init_timeout=PATIENCE_S / 3,
            ),
        )
        try:
            for values in series(record):
                run.log(values)
            run.summary.update(summary(record))
        finally:
            run.finish(exit_code=1 if failures(record) else 0)


def run_id(record: Mapping[str, Any]) -> str:
    """The same for the same measurement, so that mirroring twice makes no second run."""
    return str(record["key"])[:24]


def series(record: Mapping[str, Any]) -> list[dict[str, float]]:
    """The raw samples, one mapping a repeat."""
    samples = {name: result.get("samples_ms") or [] for name, result in record["providers"].items()}
    repeats = max(map(len, samples.values()), default=0)
    return [
        {f"{name}/ms": values[repeat] for name, values in samples.items() if repeat < len(values)}
        for repeat in range(repeats)
    ]


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Status, median and errors of each provider."""
    chosen = ("status", "median_ms", "low_ms", "high_ms", "host_median_us", "ratio_to_roofline")
    values: dict[str, Any] = {}
    for row in tidy([record]).to_dict("records"):
        for name, value in row.items():
            wanted = name in chosen or str(name).endswith(("_rmse", "_factor", "_max_abs_err", "_nonfinite"))
            if wanted and not (isinstance(value, float) and math.isnan(value)):
                values[f"{row['provider']}/{name}"] = value
    return values


def usable_mode(mode: str) -> str:
    """What a mode comes to here, decided before wandb is first started: a failed start would spoil the fallback too."""
    if mode == "online":
        address = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
        host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
        problem = None
        if not _has_key(host):
            problem = f"there is no key for {host} (set WANDB_API_KEY or run `wandb login`)"
        else:
            try:
                socket.create_connection((host, port), timeout=10).close()
            except OSError as error:
                problem = f"{host} cannot be reached ({error})"
        if problem:
            log.warning("Tracking goes on offline: %s.", problem)
            mode = "offline"
    try:
        import wandb  # noqa: F401
    except Exception as error:
        log.warning("Tracking is off: wandb cannot be imported (%s: %s).", type(error).__name__, error)
        return "disabled"
    return mode


def _has_key(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _bounded(call: Callable[[], None], seconds: float) -> str | None:
    """Run a call for at most so long; what went wrong, or None. A call that hangs is left behind in its thread."""
    problems: list[str] = []

    def guarded() -> None:
        try:
            call()
        except BaseException as error:  # wandb ends some failures with SystemExit
            problems.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return f"wandb gave no answer for {seconds:g} s"
    return problems[0] if problems else None


def main(arguments: list[str]) -> int:
    """Mirror the stored records of a folder."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tracking", description="Mirror records to wandb.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("mirror", help="make one wandb run of each stored record that has none yet")
    verb.add_argument("outputs", type=Path, help="the folder of records, as a sweep wrote it")
    verb.add_argument("--mode", choices=["offline", "online"], default="offline")
    asked = parser.parse_args(arguments)
    try:
        records = load(asked.outputs)
        tracker = Tracker(Tracking(mode=asked.mode), asked.outputs)
    except (ConfigError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    missing = [record for record in records if "key" in record and not tracker.has_mirrored(record)]
    for done, record in enumerate(missing):
        if not tracker.mirror(record):
            print(f"{done} of {len(missing)} records mirrored.", flush=True)
            return 1
    print(f"{len(missing)} records mirrored, {len(records) - len(missing)} already were.", flush=True)
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # a thread left hanging in wandb must not keep the process
