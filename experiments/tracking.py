"""Mirror records to Weights & Biases; the only module that imports wandb, and only when there is something to mirror.

A record is on the disk before it is mirrored, so whatever goes wrong here is a warning. `python -m experiments.tracking
mirror outputs` mirrors stored records afterwards, for instance those of a machine without wandb; `figures` logs what
`python -m paper` built; `rebuild` makes records from runs, byte by byte, where only the runs are left.

A run has the record as its file `record.json`, and as an artifact beside its table, `results.csv`.
"""

import argparse
import json
import logging
import math
import netrc
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from experiments import rebuild
from experiments.config import ConfigError, Tracking
from experiments.records import load, tidy
from experiments.store import RECORD, failures, finite

PATIENCE_S = 60.0
"""After this long wandb is given up: for a whole call, and so for any chain of fallbacks inside it."""
TABLE = "results.csv"
BUILT = ("figures", "tables", "numbers.tex", "claims.tex", "paper.pdf", "supplement.pdf")
"""What `figures` logs of a folder that `python -m paper` built."""
LONGEST_TAG = 64

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

    def log_figures(self, build: Path) -> bool:
        """One run with the figures and tables of a built paper as artifacts; False, and a warning, if not possible."""
        mode = usable_mode(self.tracking.mode)
        if mode == "disabled":
            return False
        problem = _bounded(lambda: self._log_built(build, mode), PATIENCE_S)
        if problem is not None:
            log.warning("The figures of %s were not logged (%s).", build, problem)
        return problem is None

    def _log(self, record: Mapping[str, Any], mode: str) -> None:
        run = self._start(
            mode,
            id=run_id(record),
            name=record["case_id"],
            group=record["stem"],
            tags=tags(record),
            config={"case": record["case"], "protocol": record["protocol"], "provenance": record["provenance"]},
            resume="allow",
        )
        try:
            for values in series(record):
                run.log(values)
            run.summary.update(summary(record))
            folder = Path(run.dir)
            (folder / RECORD).write_text(json.dumps(finite(record), allow_nan=False) + "\n", encoding="utf-8")
            tidy([finite(record)]).to_csv(folder / TABLE, index=False)
            _keep(run, f"{record['stem']}-{run_id(record)}", "record", folder, [folder / RECORD, folder / TABLE])
        finally:
            run.finish(exit_code=1 if failures(record) else 0)

    def _log_built(self, build: Path, mode: str) -> None:
        run = self._start(mode, name=build.name, group="paper", tags=["paper"], job_type="figures")
        try:
            for name in BUILT:
                found = build / name
                files = sorted(file for file in found.rglob("*") if file.is_file()) if found.is_dir() else [found]
                files = [file for file in files if file.exists()]
                if files:
                    _keep(run, f"paper-{found.stem}", "paper", build, files)
        finally:
            run.finish(exit_code=0)

    def _start(self, mode: str, **how: Any) -> Any:
        import wandb

        self.outputs.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self.tracking.project,
            dir=str(self.outputs),
            mode="online" if mode == "online" else "offline",
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
            **how,
        )


def _keep(run: Any, name: str, kind: str, folder: Path, files: Sequence[Path]) -> None:
    """Files as files of the run and as one artifact; neither is copied to the home folder, where a sync may miss it."""
    import wandb

    artifact = wandb.Artifact(name, kind)
    kept = Path(run.dir)
    for file in files:
        own = kept / file.relative_to(folder)
        if own != file:
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_bytes(file.read_bytes())
        run.save(str(own), base_path=str(kept), policy="now")
        artifact.add_file(str(own), name=own.relative_to(kept).as_posix(), policy="immutable")
    run.log_artifact(artifact)


def tags(record: Mapping[str, Any]) -> list[str]:
    """What runs are filtered by: hardware, the choices of the case, and where its numbers come from."""
    case, provenance = record["case"], record["provenance"]
    words = [record["hardware"], record["stem"], *(case.get(name) for name in ("level", "mode", "dtype", "gates"))]
    words += [
        f"T={case['T']}",
        "channels last" if case.get("dim") == -2 else "",
        "packed" if case.get("lengths") else "",
    ]
    words += ["reverse" if case.get("reverse") else "", provenance.get("gpu") or provenance.get("cpu")]
    words += [f"{name} {provenance[name]}" for name in ("torch", "triton", "cuda") if provenance.get(name)]
    words += [f"commit {provenance['commit'][:12]}" if provenance.get("commit") else ""]
    words += ["uncommitted changes" if provenance.get("dirty") else "", "failed" if failures(record) else ""]
    return list(dict.fromkeys(str(word)[:LONGEST_TAG] for word in words if word))


def run_id(record: Mapping[str, Any]) -> str:
    """The same for the same measurement, so that mirroring twice makes no second run."""
    return str(record["key"])[:24]


def series(record: Mapping[str, Any]) -> list[dict[str, float]]:
    """The raw samples and losses, one mapping a repeat or step."""
    taken = {
        f"{name}/{word}": result.get(field) or []
        for name, result in record["providers"].items()
        for word, field in (("ms", "samples_ms"), ("loss", "losses"))
    }
    return [
        {name: values[repeat] for name, values in taken.items() if repeat < len(values)}
        for repeat in range(max(map(len, taken.values()), default=0))
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


def downloaded(project: str) -> Iterator[tuple[str, str]]:
    """The name and the record's text of every run of a project on the server that has one."""
    import wandb

    for run in wandb.Api(timeout=int(PATIENCE_S)).runs(project):
        for file in run.files(names=[RECORD]):
            with tempfile.TemporaryDirectory() as folder, file.download(root=folder, replace=True) as content:
                yield f"{project}/{run.id}", content.read()


def main(arguments: list[str]) -> int:
    """Mirror the stored records of a folder, log figures, or rebuild records from runs."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tracking", description="Mirror records to wandb.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    mirror = verbs.add_parser("mirror", help="make one wandb run of each stored record that has none yet")
    mirror.add_argument("outputs", type=Path, help="the folder of records, as a sweep wrote it")
    figures = verbs.add_parser("figures", help="log the figures and tables of a built paper as artifacts of one run")
    figures.add_argument("build", type=Path, help="the folder that `python -m paper` built")
    figures.add_argument("outputs", type=Path, help="the folder of records, whose runs the new one joins")
    for verb in (mirror, figures):
        verb.add_argument("--mode", choices=["offline", "online"], default="offline")
    again = verbs.add_parser("rebuild", help="write the records that runs hold, as the sweep wrote them")
    again.add_argument("runs", help="a folder with run folders in it, at any depth; with --online ENTITY/PROJECT")
    again.add_argument("outputs", type=Path, help="where to; a record there that is as new is left alone")
    again.add_argument("--online", action="store_true", help="ask the server, with the account of `wandb login`")
    asked = parser.parse_args(arguments)
    try:
        if asked.verb == "mirror":
            return _mirror(asked.outputs, asked.mode)
        if asked.verb == "figures":
            return _figures(asked.build, asked.outputs, asked.mode)
        return _rebuild(asked.runs, asked.outputs, asked.online)
    except (ConfigError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _mirror(outputs: Path, mode: str) -> int:
    records = load(outputs)
    tracker = Tracker(Tracking(mode=mode), outputs)
    missing = [record for record in records if "key" in record and not tracker.has_mirrored(record)]
    for done, record in enumerate(missing):
        if not tracker.mirror(record):
            print(f"{done} of {len(missing)} records mirrored.", flush=True)
            return 1
    print(f"{len(missing)} records mirrored, {len(records) - len(missing)} already were.", flush=True)
    return 0


def _figures(build: Path, outputs: Path, mode: str) -> int:
    if not (build / "figures").is_dir():
        raise ConfigError(f"Figures are logged from a folder that `python -m paper` built, and {build} has none.")
    done = Tracker(Tracking(mode=mode), outputs).log_figures(build)
    print(f"The figures and tables of {build} were {'' if done else 'not '}logged.", flush=True)
    return 0 if done else 1


def _rebuild(runs: str, outputs: Path, online: bool) -> int:
    try:
        found = list(downloaded(runs)) if online else list(rebuild.in_folder(Path(runs)))
    except (ConfigError, OSError):
        raise
    except Exception as error:  # wandb raises what it likes
        raise ConfigError(f"The runs of {runs} cannot be read ({type(error).__name__}: {error}).") from error
    written, unusable = rebuild.write(found, outputs)
    for name, why in unusable:
        print(f"{name}: {why}", file=sys.stderr)
    already = len(found) - written - len(unusable)
    print(f"{len(found)} runs: {written} records written, {already} were there, {len(unusable)} unusable.", flush=True)
    return 1 if unusable or not found else 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # a thread left hanging in wandb must not keep the process
