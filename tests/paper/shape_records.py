"""Synthetic records of layouts, few rows and both directions, for tests alone."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tests.paper.conftest import Record, record

MOVED = {"forward": 3, "backward": 5}
BOTH = {
    "branched": {"forward": 6, "backward": 10},
    "shared": {"forward": 4, "backward": 7},
    "shared_sum": {"forward": 3, "backward": 6},
}
ITEMSIZE = {"float32": 4, "bfloat16": 2, "complex64": 8}
SHAPES = [(8, 1536, T) for T in (512, 2048, 8192)] + [(2, 1536, 65536), (8, 100, 4096), (8, 1537, 4096)]


def timed(limit_ms: float, shares: Mapping[str, float], draw: random.Random) -> Record:
    """Providers that each reach a share of the limit."""
    results: Record = {}
    for name, share in shares.items():
        samples = [limit_ms / share * (1 + 0.01 * draw.random()) for _ in range(7)]
        results[name] = {"status": "ok", "reason": None, "samples_ms": samples}
    return results


def made(stem: str, hardware: str, case: Record, providers: Record) -> Record:
    """A record whose name tells its shape as well."""
    each = record(stem, hardware, {"gates": "uniform_0_1", "level": "kernel", **case}, providers)
    each["case_id"] += "".join(f"-{word}{case[word]}" for word in ("B", "C", "directions") if word in case)
    return each


def layouts_records(hardware: str = "h200") -> list[Record]:
    """Channels last: one that transposes, one that is wrong at one shape, one that takes time contiguous only."""
    draw, records = random.Random(4), []
    for dtype in ("float32", "bfloat16"):
        for mode, moved in MOVED.items():
            for B, C, T in SHAPES:
                limit = B * C * T * moved * ITEMSIZE[dtype] / 4.2e9 + 0.004
                shares = {"ours": 0.93, "transposed": 0.3, "hgrn": 0.37, "roofline": 1.0}
                providers = timed(limit, shares, draw)
                providers["scalar"] = {"status": "unsupported", "reason": "scalar takes time contiguous."}
                if C == 100:
                    providers["hgrn"] |= {"status": "wrong", "reason": "states differ."}
                case = {"mode": mode, "dtype": dtype, "B": B, "C": C, "T": T, "dim": -2}
                records.append(made("layouts", hardware, case, providers))
    return records


def few_rows_records(hardware: str = "h200") -> list[Record]:
    """One row, some and many; of complex numbers in one shape."""
    draw, records = random.Random(5), []
    for dtype, C, T in [*(("float32", C, T) for C, T in ((1, 131072), (512, 131072), (4096, 1024))),
                        ("complex64", 512, 131072)]:  # fmt: skip
        for mode, moved in MOVED.items():
            limit = C * T * moved * ITEMSIZE[dtype] / 4.2e9 + 0.004
            shares = {"ours": 0.02 if C == 1 else 0.9, "scalar": 0.01 if C == 1 else 0.8, "roofline": 1.0}
            providers = timed(limit, shares, draw)
            providers["complex"] = {"status": "unsupported", "reason": "complex has no float32."}
            if dtype == "complex64":
                providers["complex"] = timed(limit, {"complex": 0.6}, draw)["complex"]
                providers["scalar"] = {"status": "unsupported", "reason": "scalar has no complex64."}
            case = {"mode": mode, "dtype": dtype, "B": 1, "C": C, "T": T}
            records.append(made("few_rows", hardware, case, providers))
    return records


def bidirectional_records(hardware: str = "h200") -> list[Record]:
    """Each form by length, warp wrong at one of them, and calls with and without gradients."""
    draw, records = random.Random(6), []
    for form, modes in BOTH.items():
        for dtype in ("float32", "bfloat16"):
            for mode, moved in modes.items():
                for T in (128, 2048, 32768):
                    limit = 8 * 1536 * T * moved * ITEMSIZE[dtype] / 4.2e9 + 0.004
                    shares = {"ours": 0.92, "two_launches": 0.6, "warp_flips": 0.25, "roofline": 1.0}
                    providers = timed(limit, shares, draw)
                    if T == 32768:
                        providers["warp_flips"] |= {"status": "wrong", "reason": "d_gates differs."}
                    case = {"mode": mode, "dtype": dtype, "B": 8, "C": 1536, "T": T, "directions": form}
                    records.append(made("bidirectional", hardware, case, providers))
            for mode, two in (("forward_backward", 0.5), ("forward", 0.4)):
                for T in (128, 1024):
                    shares = {"ours": 0.8, "two_launches": two, "warp_flips": 0.4, "roofline": 1.0}
                    providers = timed(0.2, shares, draw)
                    for name in ("ours", "two_launches", "warp_flips"):
                        providers[name]["host_samples_us"] = [150 + draw.random() for _ in range(7)]
                    case = {"mode": mode, "dtype": dtype, "B": 8, "C": 1536, "T": T, "directions": form}
                    records.append(made("bidirectional", hardware, {**case, "level": "api"}, providers))
    return records
