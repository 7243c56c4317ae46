"""Synthetic records, for tests alone: every name in them says so, and they are written below pytest's folder only."""

import copy
import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from paper import style
from paper.__main__ import build
from paper.measurements import Measurements, gather

REPOSITORY = Path(__file__).parents[2]
LENGTHS = [128, 512, 2048, 8192, 65536]
SPEED_OF = {
    "ours": 0.97,
    "warp": 0.8,
    "scalar": 0.6,
    "ref": 0.05,
    "hgrn": 0.37,
    "torch_associative_scan": 0.2,
    "jax_associative_scan": 0.3,
    "associative_scan_triton": 0.7,
    "linrec": 0.9,
    "sequential": 0.01,
    "hillis_steele": 0.03,
    "blelloch": 0.1,
}
Record = dict[str, Any]


def record(stem: str, hardware: str, case: Record, providers: Record, **more: Any) -> Record:
    """A record of made-up numbers on a machine that does not exist."""
    name = "-".join(str(case[word]) for word in ("level", "mode", "dtype", "gates", "T"))
    name += "".join(f"-{case[word]}" for word in ("reverse", "lengths", "needs") if case.get(word))
    return {
        "schema": 1,
        "stem": stem,
        "hardware": hardware,
        "case_id": f"synthetic-{stem}-{name}",
        "case": {"stem": stem, "dim": -1, "reverse": False, "lengths": "", "draws": 1, "seed": 0, **case},
        "providers": providers,
        "protocol": {"timing": "host_clock" if hardware == "cpu" else "graph_replay", "l2": "cold"},
        "provenance": {
            "gpu": None if hardware == "cpu" else f"Synthetic {hardware.upper()} (test data)",
            "cpu": "Synthetic CPU (test data)",
            "driver": "0.0-test",
            "cuda": "0.0",
            "torch": "0.0.0",
            "triton": "0.0.0",
            "packages": {"accelerated-scan": "0.0.1", "fla-core": "0.0.2"},
            "python": "0.0",
            "commit": "0" * 40,
            "dirty": False,
            "measured_at": f"2030-01-02T03:{case['T'].bit_length():02d}:{min(len(name), 59):02d}.000+00:00",
        },
        "key": name,
        **more,
    }


def speed_records(hardware: str = "h200", lengths: Iterable[int] = LENGTHS, dtypes: Iterable[str] = ()) -> list[Record]:
    """A sweep of speed: roofline, several providers, one wrong, one unsupported."""
    draw = random.Random(0)
    levels = ("api",) if hardware == "cpu" else ("kernel", "api")
    records = []
    for dtype in dtypes or ("float32", "bfloat16", "float16"):
        for level in levels:
            for mode, moved in (("forward", 3), ("backward", 5), ("forward_backward", 8)):
                for T in lengths:
                    limit = 8 * 1536 * T * moved * (4 if dtype == "float32" else 2) / 4.2e9 + 0.004
                    providers: Record = {}
                    for name, fraction in SPEED_OF.items():
                        own = limit / (fraction * (1 - 0.3 / math.sqrt(T / 64)))
                        samples = [own * (1 + (0.02 if level == "kernel" else 0.6) * draw.random()) for _ in range(7)]
                        providers[name] = {"status": "ok", "reason": None, "samples_ms": samples}
                        if level == "api":
                            host = [(180 if name == "ours" else 140) + 5 * draw.random() for _ in range(7)]
                            providers[name]["host_samples_us"] = host
                    if dtype != "float32" and T >= 4096:
                        providers["warp"] |= {"status": "wrong", "reason": "states has 7 elements that are not finite."}
                    if dtype != "float32" and T >= 4096:
                        providers["warp"]["detail"] = {"layout": "copies, zeros behind: it reads past their end"}
                    if dtype == "float32" and T >= 8192 and mode != "forward":
                        reason = "d_gates differs by 7 times its error budget at row 3, t = 4095."
                        providers["warp"] |= {"status": "wrong", "reason": reason}
                    if level == "api" and mode == "backward" and T == 128:
                        reason = "{} reads past the end of its tensors, so only its kernels are run there."
                        for name in ("warp", "scalar"):
                            providers[name] = {"status": "unsupported", "reason": reason.format(name)}
                    providers["scalar"] = (
                        {"status": "unsupported", "reason": "scalar runs on cuda, and this device is cpu_50%."}
                        if hardware == "cpu"
                        else providers["scalar"]
                    )
                    if hardware != "cpu":
                        samples = [limit * (1 + 0.01 * draw.random()) for _ in range(7)]
                        providers["roofline"] = {"status": "ok", "reason": None, "samples_ms": samples}
                    case = {"level": level, "mode": mode, "dtype": dtype, "B": 8, "C": 1536, "T": T}
                    records.append(record("speed", hardware, {**case, "gates": "uniform_0_1"}, providers))
    return records


def variant_records() -> list[Record]:
    """What speed measures beside its product: ours and one peer, backwards, at odd lengths, with fewer gradients."""
    draw = random.Random(2)
    cases: list[tuple[Record, float]] = []
    for mode, moved in (("forward", 3), ("backward", 5)):
        cases += [({"mode": mode, "T": T, "reverse": True}, moved) for T in (512, 8192)]
        cases += [({"mode": mode, "T": T}, moved) for T in (1000, 33753)]
    for needs, moved in (("gates", 4), ("tokens", 3)):
        cases += [({"mode": "backward", "T": T, "needs": needs}, moved) for T in (512, 8192)]
    records = []
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        for case, moved in cases:
            limit = 8 * 1536 * case["T"] * moved * size / 4.2e9 + 0.004
            providers: Record = {
                name: {"status": "ok", "reason": None, "samples_ms": [limit / share * (1 + 0.01 * draw.random())] * 7}
                for name, share in (("ours", 0.93), ("scalar", 0.5), ("roofline", 1.0))
            }
            if case.get("reverse") or case.get("needs"):
                providers["scalar"] = {"status": "unsupported", "reason": "scalar cannot do that in this test."}
            shape = {"level": "kernel", "dtype": dtype, "B": 8, "C": 1536, "gates": "uniform_0_1"}
            records.append(record("speed", "h200", {**shape, **case}, providers))
    return records


def packing_records(hardware: str = "h200") -> list[Record]:
    """Packed kernels with a peer that is slow where a sequence is long, and a pair of calls."""
    draw = random.Random(3)
    packed = {"1x32768+64x512": 65536, "32x1000..2147": 50352, "4096x1..64": 133120, "1x65536": 65536}
    shape = {"B": 1, "C": 1536, "gates": "uniform_0_1"}
    records = []
    for dtype in ("float32", "bfloat16"):
        for mode, moved in (("forward", 3), ("backward", 5)):
            for lengths, T in packed.items():
                limit = 1536 * T * moved * (4 if dtype == "float32" else 2) / 4.2e9 + 0.004
                shares = {"ours": 0.94, "hgrn": 0.4 if lengths == "4096x1..64" else 0.02, "roofline": 1.0}
                providers: Record = {
                    name: {
                        "status": "ok", "reason": None, "detail": {"host_waits": False},
                        "samples_ms": [limit / share * (1 + 0.01 * draw.random()) for _ in range(7)],
                    }
                    for name, share in shares.items()
                }  # fmt: skip
                case = {**shape, "level": "kernel", "mode": mode, "dtype": dtype, "T": T, "lengths": lengths}
                records.append(record("packing", hardware, case, providers))
    for mode in ("forward", "forward_backward"):
        for lengths in ("8x8192", "1024x64"):
            ours = {
                "status": "ok", "reason": None, "samples_ms": [0.5 + 0.01 * draw.random() for _ in range(7)],
                "host_samples_us": [80 + draw.random() for _ in range(7)], "detail": {"host_waits": False},
            }  # fmt: skip
            case = {**shape, "level": "api", "mode": mode, "dtype": "float32", "T": 65536, "lengths": lengths}
            records.append(record("packing", hardware, case, {"ours": ours}))
    return records


def precision_records(hardware: str = "h200", lengths: Iterable[int] = (128, 2048, 8192)) -> list[Record]:
    """A sweep of precision: 32 draws, both distributions of gates, one provider overflowing and one diverging."""
    draw = random.Random(1)
    records = []
    for gates in ("uniform_0_1", "uniform_099_1"):
        for dtype, unit in (("float32", 3e-8), ("bfloat16", 2e-3), ("float16", 2.5e-4)):
            for T in lengths:
                providers: Record = {}
                harder = gates != "uniform_0_1" and dtype == "float32" and T >= 2048
                for name, factor in (("ours", 1.01), ("warp", 1.9), ("hgrn", 2e5 if harder else 3.0)):
                    errors = {}
                    for quantity in ("states", "d_gates", "d_tokens"):
                        rounding = [unit * (1 + 0.02 * draw.random()) for _ in range(32)]
                        rmse = [factor * each * (1 + 0.05 * draw.random()) for each in rounding]
                        errors[quantity] = {"rmse": rmse, "rounding_rmse": rounding, "nonfinite": [0] * 32}
                    providers[name] = {"status": "ok", "reason": None, "errors": errors}
                if T >= 8192 and dtype != "float32":
                    status = "overflowed" if dtype == "bfloat16" else "diverged"
                    providers["warp"] |= {"status": status, "reason": "states and d_gates fail in this test."}
                    for quantity in ("states", "d_gates"):
                        if status == "diverged":
                            lost = {"rmse": [None] * 32, "rounding_rmse": [unit] * 32, "nonfinite": [9] * 32}
                        else:
                            lost = {"rmse": [6e18] * 32, "rounding_rmse": [unit] * 32, "nonfinite": [0] * 32}
                        providers["warp"]["errors"][quantity] = lost
                case = {"level": "", "mode": "forward_backward", "dtype": dtype, "B": 1, "C": 4, "T": T}
                made = record("precision", hardware, {**case, "gates": gates, "draws": 32}, providers)
                if gates != "uniform_0_1" and dtype != "float32":
                    made["protocol"]["gate_values"] = [0.9, 0.95, 1.0]
                records += [made, channels_last(made)]
    return records


def channels_last(made: Record) -> Record:
    """The same case with channels contiguous, where every error is 1.5 times as large."""
    other = copy.deepcopy(made)
    other["case"]["dim"] = -2
    other["case_id"] += "-channels_last"
    other["providers"]["warp"] = {"status": "unsupported", "reason": "warp takes time contiguous."}
    for name in ("ours", "hgrn"):
        for errors in other["providers"][name]["errors"].values():
            errors["rmse"] = [1.5 * each for each in errors["rmse"]]
    return other


@pytest.fixture(scope="session")
def published() -> Measurements:
    """The committed tables of others, and nothing else."""
    return gather(REPOSITORY / "paper" / "results" / "published")


@pytest.fixture(scope="session")
def write_results(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes records as `<hardware>/<stem>.jsonl` into a new folder of results, the published tables beside them."""

    def write(*records: Record, beside_published: bool = True) -> Path:
        folder = tmp_path_factory.mktemp("results")
        if beside_published:
            shutil.copytree(REPOSITORY / "paper" / "results" / "published", folder / "published")
        for each in records:
            file = folder / each["hardware"] / f"{each['stem']}.jsonl"
            file.parent.mkdir(exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(each) + "\n")
        return folder

    return write


@pytest.fixture(scope="session")
def synthetic(write_results: Callable[..., Path]) -> Path:
    """Results of nine experiments on a GPU and of speed on a CPU, none of them real."""
    from tests.paper.shape_records import bidirectional_records, few_rows_records, layouts_records
    from tests.paper.step_records import compile_records, memory_records, training_records

    cpu = speed_records("cpu", (128, 512, 2048), ("float32", "bfloat16"))
    layers = [*compile_records(), *memory_records(), *training_records()]
    shapes = [*layouts_records(), *few_rows_records(), *bidirectional_records()]
    lengths = [*speed_records(), *variant_records(), *packing_records(), *precision_records()]
    return write_results(*lengths, *shapes, *layers, *cpu)


@pytest.fixture(scope="session")
def measured(synthetic: Path) -> Measurements:
    """Those results, gathered."""
    return gather(synthetic)


@dataclass(frozen=True)
class Drawn:
    """A build, and the figures that were saved in it."""

    folder: Path
    figures: list[Figure]


@pytest.fixture(scope="session")
def drawn(measured: Measurements, tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """The whole paper short of LaTeX, from synthetic results."""
    folder, figures, save = tmp_path_factory.mktemp("built"), [], style.save

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(style, "save", keep)
        build(measured, folder)
    return Drawn(folder, figures)


@pytest.fixture(scope="session")
def built(drawn: Drawn) -> Path:
    """The folder of that build; whoever adds to it copies it first."""
    return drawn.folder


@dataclass(frozen=True)
class Command:
    """What a process said that built the paper, and where."""

    folder: Path
    status: int
    out: str
    error: str


@pytest.fixture(scope="session")
def of_stored_records(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """`python -m paper` on what is stored, in a process that has neither LaTeX nor what only measuring needs."""
    folder = tmp_path_factory.mktemp("stored")
    blocked = ("torch", "triton", "hydra", "omegaconf", "wandb", "scan")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from paper import latex; latex.available = lambda: False\n"
        f"from paper.__main__ import main; sys.exit(main(['--out', {str(folder)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    return Command(folder, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def figures(drawn: Drawn) -> list[Figure]:
    """Its figures."""
    return drawn.figures
