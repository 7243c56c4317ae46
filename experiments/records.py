"""Stored records in, one tidy table out.

Only the standard library and pandas, because the paper is built on machines that have nothing else.
"""

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

SCHEMA = 1
OUTPUTS = Path(os.environ.get("SCAN_OUTPUTS") or Path(__file__).resolve().parents[1] / "outputs").absolute()
"""Where sweeps leave their records, unless told otherwise."""
QUANTITIES = ("states", "d_gates", "d_tokens")


class NoRecordError(ValueError):
    """A file that holds no record, named in a sentence."""


def load(source: Path | str) -> list[dict[str, Any]]:
    """The records of a jsonl file, or of every `record.json` and `*.jsonl` below a folder, sorted by path."""
    source = Path(source)
    if source.is_dir():
        files = sorted([*record_files(source), *source.rglob("*.jsonl")])
    elif source.is_file():
        files = [source]
    else:
        raise FileNotFoundError(f"Records are read from a folder or a jsonl file, and {source} is neither.")
    records = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        try:
            records += [json.loads(line) for line in (text.splitlines() if file.suffix == ".jsonl" else [text]) if line]
        except json.JSONDecodeError as error:
            sentence = f"{file} holds a line that is not JSON ({error}); restore or delete it."
            raise NoRecordError(sentence) from error
    for record in records:
        if record.get("schema") != SCHEMA:
            found = record.get("schema")
            raise ValueError(f"A record in {source} has schema {found!r}, but this version reads {SCHEMA}.")
    return records


def record_files(folder: Path) -> list[Path]:
    """Every `record.json` below a folder, but not the copies that runs of wandb keep there."""
    return sorted(file for file in folder.rglob("record.json") if "wandb" not in file.relative_to(folder).parts)


def median_interval(samples: Iterable[float]) -> tuple[float, float]:
    """The 95 % confidence interval of a median by order statistics; the extremes below six samples.

    The number of samples below the median is binomial, so the k-th smallest and k-th largest bracket it with
    probability 1 - 2 P(Binomial(n, 1/2) < k), whatever the distribution.
    """
    ordered = sorted(samples)
    n, below, k = len(ordered), 0.0, 0
    while k < n:
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def tidy(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per case and provider.

    Times: `median_ms` with its 95 % interval `low_ms`, `high_ms`, `host_median_us`, and `ratio_to_roofline` within the
    record. Errors: `<quantity>_rmse` (mean over draws), `<quantity>_factor` (mean over draws of the RMSE divided by
    the error of rounding the exact result once), `<quantity>_max_abs_err` and `<quantity>_nonfinite`. Columns that a
    record cannot fill hold NaN.
    """
    return pd.DataFrame([_row(record, name) for record in records for name in record["providers"]])


def _row(record: Mapping[str, Any], provider: str) -> dict[str, Any]:
    result = record["providers"][provider]
    provenance = record.get("provenance") or {}
    published = record.get("published") or {}
    row: dict[str, Any] = {
        "hardware": record["hardware"],
        "gpu": provenance.get("gpu"),
        "device": provenance.get("gpu") or provenance.get("cpu"),
        "case_id": record["case_id"],
        "needs": "gates,tokens",  # what cases asked for before they had a choice
        "directions": "causal",  # likewise
        **record["case"],
        "provider": provider,
        "status": result["status"],
        "reason": result.get("reason"),
        "published": bool(published),
        "source": published.get("source"),
        "table": published.get("table"),
        "timing": (record.get("protocol") or {}).get("timing"),
        "commit": provenance.get("commit"),
        "dirty": provenance.get("dirty"),
        "measured_at": provenance.get("measured_at"),
        "elapsed_s": ((record.get("protocol") or {}).get("elapsed_s") or {}).get("case", math.nan),
    }
    row |= _times(result)
    roofline = _times(record["providers"].get("roofline", {}))["median_ms"]
    row["ratio_to_roofline"] = row["median_ms"] / roofline if roofline > 0 else math.nan
    for quantity in QUANTITIES:
        row |= _errors(result, quantity)
    return row


def _times(result: Mapping[str, Any]) -> dict[str, Any]:
    samples = result.get("samples_ms") or []
    host = result.get("host_samples_us") or []
    median = statistics.median(samples) if samples else result.get("median_ms")
    low, high = median_interval(samples) if samples else (math.nan, math.nan)
    return {
        "median_ms": math.nan if median is None else median,
        "low_ms": low,
        "high_ms": high,
        "samples": len(samples),
        "host_median_us": statistics.median(host) if host else math.nan,
    }


def _errors(result: Mapping[str, Any], quantity: str) -> dict[str, float]:
    """The errors of one quantity over its draws; a published table has one printed RMSE of the states."""
    if quantity == "states" and result.get("rmse") is not None:
        measured: Mapping[str, Any] = {"rmse": [result["rmse"]]}
    else:
        stored = (result.get("errors") or {}).get(quantity)
        measured = stored if isinstance(stored, Mapping) else {}
    rmse = measured.get("rmse") or []
    rounding = measured.get("rounding_rmse") or []
    factors = [a / b for a, b in zip(rmse, rounding, strict=False) if a is not None and b]
    finite = [value for value in rmse if value is not None]
    largest = [value for value in measured.get("max_abs_err") or [] if value is not None]
    nonfinite = measured.get("nonfinite")
    return {
        f"{quantity}_rmse": statistics.fmean(finite) if finite else math.nan,
        f"{quantity}_factor": statistics.fmean(factors) if factors else math.nan,
        f"{quantity}_max_abs_err": max(largest) if largest else math.nan,
        f"{quantity}_nonfinite": math.nan if nonfinite is None else sum(nonfinite),
    }
