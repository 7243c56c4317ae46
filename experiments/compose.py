"""From the files in conf/ to `Settings`: the only module besides the entry point that knows Hydra."""

import dataclasses
import os
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from experiments.config import Settings
from experiments.hardware import ROOT, Machine, ask_this_machine, overrides_for
from experiments.records import OUTPUTS

CONF = ROOT / "conf"
# conf/config.yaml reads it, so that outputs lie in one place whatever folder the command is typed in.
os.environ["SCAN_OUTPUTS"] = str(OUTPUTS)


def options(group: str) -> list[str]:
    """The names that a group of conf/ offers."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def compose(*overrides: str) -> DictConfig:
    """The configuration under these overrides, inside or outside of a Hydra application."""
    if GlobalHydra.instance().is_initialized():
        return hydra.compose("config", list(overrides))
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", list(overrides))


def settings_of(config: DictConfig, overrides: list[str], machine: Machine | None = None) -> Settings:
    """The settings that a composed configuration stands for; hardware=auto is composed again for the machine.

    Which machine that is, is asked unless it is given. An axis that is overridden by hand holds in the
    blocks of `also` too: experiment.T=128 measures no other length.
    """
    if config.hardware.name == "auto":
        presets: dict[str, Any] = {
            name: OmegaConf.to_container(OmegaConf.load(CONF / "hardware" / f"{name}.yaml"))
            for name in options("hardware")
        }
        given = [each for each in overrides if each.partition("=")[0] != "hardware"]
        config = compose(*overrides_for(machine or ask_this_machine(), presets), *given)
    values: Any = OmegaConf.to_container(config, resolve=True)
    settings = Settings.from_dict(values)
    named = [each.partition("=")[0].lstrip("+").removeprefix("experiment.") for each in overrides]
    experiment = settings.experiment.with_axes_held(named)
    return dataclasses.replace(settings, experiment=experiment, outputs=to_absolute_path(settings.outputs))
