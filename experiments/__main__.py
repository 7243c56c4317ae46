"""`python -m experiments`: compose the configuration, turn it into plain settings, have them measured."""

import os
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from experiments.config import ConfigError, Settings
from experiments.hardware import ROOT, ask_this_machine, overrides_for
from experiments.supervise import claimed, supervise
from experiments.sweep import UNUSABLE

CONF = ROOT / "conf"
# conf/config.yaml reads it, so that outputs lie in the project whatever folder the command is typed in.
os.environ.setdefault("SCAN_OUTPUTS", str(ROOT / "outputs"))


_STARTED_BY = os.getpid()
_statuses: list[int] = []


def presets() -> dict[str, Any]:
    """The hardware presets by name."""
    files = sorted((CONF / "hardware").glob("*.yaml"))
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in files}


def settings_of(config: DictConfig, overrides: list[str]) -> Settings:
    """The settings that a composed configuration stands for; hardware=auto is composed again for this machine."""
    if config.hardware.name == "auto":
        given = [each for each in overrides if each.partition("=")[0] != "hardware"]
        config = hydra.compose("config", [*overrides_for(ask_this_machine(), presets()), *given])
    values: Any = OmegaConf.to_container(config, resolve=True)
    values["outputs"] = to_absolute_path(values["outputs"])
    return Settings.from_dict(values)


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
    _statuses.append(status)
    if status and config.fail_fast:
        sys.exit(status)
    if status and os.getpid() != _STARTED_BY:
        # A job of a cluster: the launching process learns of it from the exception alone.
        raise RuntimeError(problem or f"The sweep in {run_folder} ended with exit status {status}.")


if __name__ == "__main__":
    main()
    sys.exit(max(_statuses, default=0))
