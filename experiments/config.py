"""What a sweep is made of: frozen, validated once, plain Python.

`Settings.from_dict` takes the plain dictionary that Hydra composed (values live in conf/, types here). Nothing past
the entry point sees a DictConfig, so measuring works where Hydra is not installed.
"""

import dataclasses
import hashlib
import json
import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64")
MODES = ("forward", "backward", "forward_backward")
LEVELS = ("kernel", "api", "")
GATES = ("uniform_0_1", "uniform_099_1")
NEEDS = ("gates,tokens", "gates", "tokens")
DIRECTIONS = ("causal", "branched", "shared", "shared_sum")
TRACKING_MODES = ("offline", "online", "disabled")
PROVIDERS = (
    "ours",
    "warp",
    "scalar",
    "ref",
    "hgrn",
    "torch_associative_scan",
    "jax_associative_scan",
    "sequential",
    "hillis_steele",
    "blelloch",
    "associative_scan_triton",
    "linrec",
    "transposed",
    "complex",
    "two_launches",
    "warp_flips",
    "roofline",
)

Built = TypeVar("Built")

# Longer lists of lengths would make names of folders that nobody reads.
_READABLE = 40


class ConfigError(ValueError):
    """A setting that cannot be used; the message is one sentence that says what to write instead."""


def _choice(name: str, value: object, allowed: Iterable[str]) -> None:
    if value not in tuple(allowed):
        words = ", ".join(repr(word) for word in allowed)
        raise ConfigError(f"{name} must be one of {words}, got {value!r}.")


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}.")


def _positive(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a positive number, got {value!r}.")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}.")


def path_of_folder(name: str, value: object) -> Path:
    """The value as a path; raises unless it is the name of one."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be the path of a folder, got {value!r}.")
    return Path(value)


@dataclass(frozen=True)
class Case:
    """One point of a sweep, measured with all its providers together."""

    stem: str
    level: str
    mode: str
    dtype: str
    B: int
    C: int
    T: int
    dim: int = -1
    reverse: bool = False
    lengths: str = ""
    gates: str = "uniform_0_1"
    draws: int = 1
    seed: int = 0
    needs: str = NEEDS[0]
    directions: str = DIRECTIONS[0]
    """Both at once where it is not causal: of tensors of their own (`branched`), of the same gates and tokens
    (`shared`), of the same with the states added (`shared_sum`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.stem, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.stem):
            raise ConfigError(f"stem must be a lower-case word such as 'speed', got {self.stem!r}.")
        _choice("level", self.level, LEVELS)
        _choice("mode", self.mode, MODES)
        _choice("dtype", self.dtype, DTYPES)
        _choice("gates", self.gates, GATES)
        for name in ("B", "C", "T", "draws"):
            _at_least(name, getattr(self, name), 1)
        _at_least("seed", self.seed, 0)
        if self.dim not in (-1, -2):
            raise ConfigError(f"dim must be -1 (time last) or -2 (channels last), got {self.dim!r}.")
        _flag("reverse", self.reverse)
        _choice("needs", self.needs, NEEDS)
        if self.needs != NEEDS[0] and self.mode != "backward":
            raise ConfigError(f"needs must be {NEEDS[0]!r} where mode is {self.mode!r}, got {self.needs!r}.")
        _choice("directions", self.directions, DIRECTIONS)
        if self.directions != DIRECTIONS[0] and (self.reverse or self.lengths or self.needs != NEEDS[0]):
            raise ConfigError(
                f"directions must be {DIRECTIONS[0]!r} where reverse, lengths or needs are set, "
                f"got {self.directions!r}."
            )
        if self.lengths and sum(self.sequence_lengths) != self.T:
            raise ConfigError(f"T must be the sum of lengths {self.lengths!r}, got {self.T}.")

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """The packed lengths spelled out; the single length T where nothing is packed."""
        return parse_lengths(self.lengths) if self.lengths else (self.T,)

    @property
    def id(self) -> str:
        """A readable name that ends in a hash of every field, so that two cases never share a folder."""
        words = [self.level, self.mode, self.dtype, self.gates if self.gates != "uniform_0_1" else ""]
        words += [
            f"B{self.B}",
            f"C{self.C}",
            f"T{self.T}",
            self.lengths if len(self.lengths) <= _READABLE else "packed",
        ]
        words += ["channels_last" if self.dim == -2 else "", "reverse" if self.reverse else ""]
        words += [f"{self.needs}_only" if self.needs != NEEDS[0] else ""]
        words += [self.directions if self.directions != DIRECTIONS[0] else ""]
        fields = dataclasses.asdict(self)
        # Fields that came later: cases stored before them keep their names.
        for name, default in (("needs", NEEDS[0]), ("directions", DIRECTIONS[0])):
            if fields[name] == default:
                del fields[name]
        return "-".join([word for word in words if word] + [digest(fields)[:10]])


@lru_cache
def parse_lengths(text: str) -> tuple[int, ...]:
    """The lengths that '1x32768+64x512' stands for: one of 32768, then 64 of 512.

    '32x1000..2147' is 32 lengths evenly spaced from 1000 to 2147, rounded, in an order that is shuffled and always the
    same: a batch of documents without drawing one.
    """
    lengths: list[int] = []
    for part in str(text).split("+"):
        found = re.fullmatch(r"(\d+)x(\d+)(?:\.\.(\d+))?", part)
        if found is None:
            raise ConfigError(
                "lengths must look like '1x32768+64x512' (count x length) or '32x1000..2147' "
                f"(count x shortest..longest), got {text!r}."
            )
        count, first = int(found[1]), int(found[2])
        lengths += [first] * count if found[3] is None else _spaced(count, first, int(found[3]))
    return tuple(lengths)


def _spaced(count: int, shortest: int, longest: int) -> list[int]:
    if count < 2 or longest <= shortest:
        raise ConfigError(f"lengths must rise over at least 2 sequences, got {count}x{shortest}..{longest}.")
    lengths = [round(shortest + (longest - shortest) * i / (count - 1)) for i in range(count)]
    # Sorted by random numbers: `random.random` is the same in every version of Python, `shuffle` need not be.
    draw = random.Random(0)
    return [length for _, length in sorted((draw.random(), length) for length in lengths)]


def digest(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Experiment:
    """The axes of a sweep; its cases are their product, then that of each block in `also`."""

    stem: str
    dtype: tuple[str, ...]
    mode: tuple[str, ...]
    level: tuple[str, ...]
    B: tuple[int, ...]
    C: tuple[int, ...]
    T: tuple[int, ...]
    dim: tuple[int, ...] = (-1,)
    reverse: tuple[bool, ...] = (False,)
    lengths: tuple[str, ...] = ("",)
    gates: tuple[str, ...] = ("uniform_0_1",)
    needs: tuple[str, ...] = NEEDS[:1]
    directions: tuple[str, ...] = DIRECTIONS[:1]
    draws: int = 1
    seed: int = 0
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Blocks by name, each with the axes in which it differs from the product above."""

    def __post_init__(self) -> None:
        if not isinstance(self.also, Mapping):
            raise ConfigError(f"experiment.also must be a mapping from names to blocks of axes, got {self.also!r}.")
        for name, block in self.also.items():
            where = f"experiment.also.{name}"
            if not isinstance(block, Mapping) or not block:
                raise ConfigError(f"{where} must be a mapping with the axes that differ, got {block!r}.")
            for axis in block:
                if axis not in AXES:
                    raise ConfigError(f"{where}.{axis} is no axis; the axes are {', '.join(AXES)}.")
        tuples = {name: {axis: _as_tuple(each) for axis, each in block.items()} for name, block in self.also.items()}
        object.__setattr__(self, "also", tuples)
        axes = {f"experiment.{axis}": getattr(self, axis) for axis in AXES}
        axes |= {
            f"experiment.also.{name}.{axis}": each for name, block in tuples.items() for axis, each in block.items()
        }
        for where, values in axes.items():
            if len(values) == 0:
                raise ConfigError(f"{where} must name at least one value, got none.")

    def cases(self) -> list[Case]:
        """Every case once, in the order in which they are measured; a packed case's T is the sum of its lengths.

        The product first, then block by block. Within each, level and dtype are outermost, so that a sweep that is cut
        short has whole groups; cases that share their draw follow each other.
        """
        blocks = [self, *(dataclasses.replace(self, also={}, **block) for block in self.also.values())]
        return list(dict.fromkeys(case for block in blocks for case in block._product()))

    def with_axes_held(self, names: Iterable[str]) -> "Experiment":
        """The same with these axes alike in all blocks: what is asked for by name holds for the whole sweep."""
        held = set(names)
        blocks = {
            name: {axis: values for axis, values in block.items() if axis not in held}
            for name, block in self.also.items()
        }
        return dataclasses.replace(self, also={name: block for name, block in blocks.items() if block})

    def _product(self) -> list[Case]:
        rows = product(self.lengths, self.B, self.C, self.T)
        cases = []
        for level, dtype, directions, gates, (lengths, B, C, T), reverse, dim, mode, needs in product(
            self.level, self.dtype, self.directions, self.gates, rows, self.reverse, self.dim, self.mode, self.needs
        ):
            total = sum(parse_lengths(lengths)) if lengths else T
            draw = (self.draws, self.seed)
            way = (dim, reverse, lengths, gates, *draw, needs, directions)
            cases.append(Case(self.stem, level, mode, dtype, B, C, total, *way))
        return cases


AXES = tuple(each.name for each in dataclasses.fields(Experiment) if str(each.type).startswith("tuple"))


@dataclass(frozen=True)
class Hardware:
    """A machine: what its device is called and which cases fit it."""

    name: str
    device: str
    """`cuda` or `cpu`; `auto` until the machine has been asked."""
    device_name: str | None = None
    """A part of the name that the device must report; None takes any."""
    memory_gib: float | None = None
    longest: Mapping[str, int] = field(default_factory=dict)
    """`<mode>` or `<level>_<mode>` -> the longest T that fits when a case has `rows` rows."""
    rows: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise ConfigError(f"hardware.name must be a lower-case word such as 'h100', got {self.name!r}.")
        _choice("hardware.device", self.device, ("cuda", "cpu", "auto"))
        _at_least("hardware.rows", self.rows, 1)
        if self.memory_gib is not None:
            _positive("hardware.memory_gib", self.memory_gib)
        known = {*MODES, *(f"{level}_{mode}" for level in LEVELS if level for mode in MODES)}
        for name, longest in self.longest.items():
            _choice("a key of hardware.longest", name, sorted(known))
            _at_least(f"hardware.longest.{name}", longest, 1)

    def fits(self, case: Case) -> bool:
        """Whether the case is no larger than the largest known to fit."""
        longest = self.longest.get(f"{case.level}_{case.mode}", self.longest.get(case.mode))
        scans = 1 if case.directions == DIRECTIONS[0] else 2
        return longest is None or scans * case.B * case.C * case.T <= self.rows * longest


@dataclass(frozen=True)
class Measure:
    """How a number is taken."""

    repeats: int = 7
    """Samples of each provider, taken round-robin over the providers."""
    target_ms: float = 5.0
    """About how long one sample lasts: as many calls as fill it, at least one."""
    warmup_ms: float = 10.0
    """About how long each provider runs before its first sample, at least one call."""
    longest_call_s: float = 0.2
    """A provider whose single call takes longer is recorded as `unsupported`, with that reason, instead of sampled."""

    def __post_init__(self) -> None:
        _at_least("measure.repeats", self.repeats, 5)
        for name in ("target_ms", "warmup_ms", "longest_call_s"):
            _positive(f"measure.{name}", getattr(self, name))


@dataclass(frozen=True)
class Tracking:
    """Where records are mirrored to."""

    mode: str = "offline"
    project: str = "linear-scan"

    def __post_init__(self) -> None:
        _choice("tracking.mode", self.mode, TRACKING_MODES)


@dataclass(frozen=True)
class Settings:
    """Everything one sweep needs."""

    experiment: Experiment
    hardware: Hardware
    measure: Measure
    tracking: Tracking
    providers: tuple[str, ...]
    outputs: str
    fail_fast: bool = False
    limit_minutes: float | None = None
    """When to stop between two cases and leave the rest to the next start; None for never."""

    def __post_init__(self) -> None:
        if not self.providers:
            raise ConfigError("providers.names must name at least one provider, got none.")
        for name in self.providers:
            _choice("providers.names", name, PROVIDERS)
        _flag("fail_fast", self.fail_fast)
        if self.limit_minutes is not None:
            _positive("limit_minutes", self.limit_minutes)
        path_of_folder("outputs", self.outputs)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings from the plain dictionary of a composed configuration; scalars count as axes of one value."""
        settings = _build(
            cls,
            "",
            {
                **values,
                "experiment": _build(Experiment, "experiment", values.get("experiment")),
                "hardware": _build(Hardware, "hardware", values.get("hardware")),
                "measure": _build(Measure, "measure", values.get("measure")),
                "tracking": _build(Tracking, "tracking", values.get("tracking")),
                "providers": _provider_names(values.get("providers")),
            },
        )
        settings.experiment.cases()  # every case validates itself, before anything is measured
        return settings

    def to_dict(self) -> dict[str, Any]:
        """The dictionary that `from_dict` takes."""
        return {**dataclasses.asdict(self), "providers": {"names": list(self.providers)}}


def _provider_names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, Mapping) or "names" not in values:
        raise ConfigError(f"providers must be a mapping with names, got {values!r}.")
    return _as_tuple(values["names"])


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _build(kind: type[Built], where: str, values: Any) -> Built:
    """An instance of a dataclass; names missing and unknown keys in a sentence."""
    prefix = f"{where}." if where else ""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {values!r}.")
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise ConfigError(f"{prefix}{name} is unknown; the settings there are {', '.join(fields)}.")
    for name, each in fields.items():
        optional = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        if name not in values and not optional:
            raise ConfigError(f"{prefix}{name} is missing; give it a value.")
    axes = {name for name, each in fields.items() if str(each.type).startswith("tuple")}
    return kind(**{name: _as_tuple(value) if name in axes else value for name, value in values.items()})
