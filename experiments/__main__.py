"""`python -m experiments`: compose the configuration, turn it into plain settings, have them measured."""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import DictConfig

from experiments import store
from experiments.compose import CONF, settings_of
from experiments.config import ConfigError, path_of_folder
from experiments.records import OUTPUTS
from experiments.supervise import claimed, supervise
from experiments.sweep import FAILED, INTERRUPTED, UNUSABLE

_STARTED_BY = os.getpid()
_statuses: list[int] = []


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def main(config: DictConfig) -> None:
    """One job: a sweep, or of a multirun the part of it that one point of the multirun leaves."""
    started = HydraConfig.get()
    run_folder = Path(started.runtime.output_dir)
    problem = None
    try:
        with claimed(run_folder) as outcome:
            outcome.status = supervise(settings_of(config, list(started.overrides.task)), run_folder)
        status = outcome.status
    except ConfigError as error:
        status, problem = UNUSABLE, str(error)
        print(f"error: {error}", file=sys.stderr, flush=True)
    except OSError as error:
        status, problem = FAILED, store.full(error, config.outputs)
        if problem is None:
            raise
        print(f"error: {problem}", file=sys.stderr, flush=True)
    _statuses.append(status)
    if status and config.fail_fast:
        sys.exit(status)
    if status and os.getpid() != _STARTED_BY:
        # A job of a cluster: the launching process learns of it from the exception alone.
        raise RuntimeError(problem or f"The sweep in {run_folder} ended with exit status {status}.")


def _unwritable() -> str | None:
    """Why the folder of the records cannot be written; asked first, since Hydra makes one of whatever is named."""
    named = [word for word in sys.argv[1:] if word.startswith("outputs=")]
    if not named:
        return store.unwritable(OUTPUTS)
    try:
        override = OverridesParser.create().parse_override(named[-1])
        return None if override.is_sweep_override() else store.unwritable(path_of_folder("outputs", override.value()))
    except OverrideParseException:
        return None  # Hydra says so
    except ConfigError as error:
        return str(error)


if __name__ == "__main__":
    if problem := _unwritable():
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(UNUSABLE)
    try:
        main()
    except KeyboardInterrupt:
        print("Stopped; the same command goes on from here.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    sys.exit(max(_statuses, default=0))
