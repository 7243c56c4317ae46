"""Synthetic records of compiled layers, of memory and of trainings, for tests alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from tests.paper.conftest import Record, record

STEP_OF = {
    "ours": 1.0, "ours_eager": 1.5, "ours_reduce_overhead": 0.9, "warp": 1.7, "warp_eager": 2.0,
    "warp_reduce_overhead": 1.6, "hillis_steele": 3.0, "hillis_steele_eager": 9.0,
}  # fmt: skip


def compile_records(hardware: str = "h200", lengths: Iterable[int] = (512, 2048, 8192)) -> list[Record]:
    """Steps of a layer: warp breaks the graph and is wrong in bfloat16, PyTorch's own has no backward."""
    draw, records = random.Random(0), []
    for dtype in ("float32", "bfloat16"):
        for T in lengths:
            providers: Record = {}
            for name, factor in STEP_OF.items():
                result: Record = {"status": "ok", "reason": None, "errors": {"output": 1e-7, "d_input": 1e-7}}
                result["samples_ms"] = [factor * T / 512 * (1 + 0.02 * draw.random()) for _ in range(7)]
                result["host_samples_us"] = [50 * factor + draw.random() for _ in range(7)]
                compiled = not name.endswith("_eager")
                breaks = 1 if name.startswith("warp") else 0
                result["detail"] = {"graph_breaks": breaks if compiled else None, "graphs": 1 + breaks}
                if "reduce" not in name:
                    result["detail"]["peak_tensors"] = 8 + 2 * factor
                if dtype == "bfloat16" and name.startswith("warp"):
                    result |= {"status": "wrong", "reason": "output is 5 times as far from the exact block."}
                providers[name] = result
            reason = "torch_associative_scan has no backward that compiles for CUDA."
            providers["torch_associative_scan"] = {"status": "unsupported", "reason": reason}
            case = {"level": "api", "mode": "forward_backward", "dtype": dtype, "B": 8, "C": 1024, "T": T, "dim": -2}
            made = record("compile", hardware, {**case, "gates": "uniform_0_1"}, providers)
            records.append(made | {"protocol": {"timing": "steps", "l2": "warm"}})
    return records


def memory_records(hardware: str = "h200") -> list[Record]:
    """Ours at the least possible, a peer with two tensors more, one that is wrong, one that runs one layout."""
    records = []
    for dtype in ("float32", "bfloat16"):
        for dim in (-1, -2):
            peaks = {"ours": (6.0, 5.0), "warp": (8.0, 7.0), "torch_associative_scan": (13.5, 12.5)}
            providers: Record = {
                name: {"status": "ok", "reason": None, "peak_tensors": {"dense": dense, "expanded": expanded}}
                for name, (dense, expanded) in peaks.items()
            }
            providers["torch_associative_scan"] |= {"status": "wrong", "reason": "states differ."}
            if dim == -2:
                providers["warp"] = {"status": "unsupported", "reason": "warp takes channels first."}
            case = {
                "level": "api",
                "mode": "forward_backward",
                "dtype": dtype,
                "B": 8,
                "C": 1536,
                "T": 4096,
                "dim": dim,
            }
            made = record("memory", hardware, {**case, "gates": "uniform_0_1"}, providers)
            made["case_id"] += str(dim)
            records.append(made)
    return records


def training_records(hardware: str = "h200", lengths: Iterable[int] = (256, 4096), steps: int = 40) -> list[Record]:
    """Curves that agree; the sequential scan at the shortest length alone, warp wrong and then lost in bfloat16."""
    draw, records = random.Random(0), []
    for dtype in ("float32", "bfloat16"):
        for T in lengths:
            exact = [2 * math.exp(-step / steps) + 0.1 * draw.random() for step in range(steps)]
            providers: Record = {}
            for name, factor in (("ours", 1.0), ("warp", 1.4), ("sequential", 30.0)):
                providers[name] = {
                    "status": "ok", "reason": None, "losses": [loss + 1e-6 * draw.random() for loss in exact],
                    "samples_ms": [factor * T / 256 * (1 + 0.02 * draw.random()) for _ in range(steps)],
                    "errors": {"of_rounding": 0.5 * factor}, "detail": {"held_bytes": int(factor * 2**22)},
                }  # fmt: skip
            if T > min(lengths):
                reason = "sequential takes a Python iteration a step."
                providers["sequential"] = {"status": "unsupported", "reason": reason}
                if dtype == "bfloat16":
                    lost = [2.5] * (steps // 2) + [None] * (steps - steps // 2)
                    reason = f"the loss is not finite from step {steps // 2} on."
                    providers["warp"] |= {"status": "wrong", "reason": reason, "losses": lost}
                    providers["warp"]["errors"] = {"of_rounding": None}
            case = {"level": "api", "mode": "forward_backward", "dtype": dtype, "B": 8, "C": 128, "T": T, "dim": -2}
            made = record("training", hardware, {**case, "gates": "uniform_0_1", "draws": steps}, providers)
            records.append(made | {"protocol": {"timing": "steps", "l2": "warm", "exact_losses": exact}})
    return records
