"""The transcribed tables of others: complete, in the schema, and as they were printed."""

from pathlib import Path
from typing import Any

import pytest

from experiments.config import PROVIDERS, Case
from experiments.records import load
from paper.measurements import Measurements
from paper.numbers import PUBLISHED

# Printed speed-ups that are not the quotient of the printed times to two decimals. All of them are short cases, whose
# times have two or three digits.
NOT_THE_QUOTIENT = {
    ("h100", "api", "forward_backward", 128): 0.75,
    ("h100", "api", "forward_backward", 256): 0.89,
    ("h100", "kernel", "forward_backward", 128): 1.03,
    ("h100", "kernel", "forward_backward", 256): 1.22,
    ("h100", "kernel", "forward", 128): 1.00,
    ("h100", "kernel", "backward", 128): 1.02,
    ("h100", "kernel", "backward", 256): 1.20,
    ("h100", "kernel", "backward", 512): 1.34,
    ("rtx_3080_ti", "api", "forward_backward", 256): 1.06,
    ("rtx_3080_ti", "kernel", "forward_backward", 256): 1.00,
    ("rtx_3080_ti", "kernel", "forward", 128): 1.01,
    ("rtx_3080_ti", "kernel", "forward", 256): 1.01,
    ("rtx_3080_ti", "kernel", "backward", 128): 1.01,
    ("rtx_3080_ti", "kernel", "backward", 256): 0.99,
    ("rtx_3080_ti", "kernel", "backward", 512): 1.00,
    ("rtx_3080_ti", "kernel", "backward", 1024): 0.99,
}


def records(stem: str) -> list[dict[str, Any]]:
    """The committed records themselves."""
    folder = Path(__file__).parents[2] / "paper" / "results" / "published"
    return [record for record in load(folder) if record["stem"] == stem]


@pytest.mark.parametrize(
    ("hardware", "level", "mode", "longest", "cases"),
    [
        ("h100", "api", "forward_backward", 65536, 10),
        ("h100", "kernel", "forward_backward", 65536, 10),
        ("h100", "kernel", "forward", 65536, 10),
        ("h100", "kernel", "backward", 65536, 10),
        ("rtx_3080_ti", "api", "forward_backward", 16384, 8),
        ("rtx_3080_ti", "kernel", "forward_backward", 32768, 9),
        ("rtx_3080_ti", "kernel", "forward", 65536, 10),
        ("rtx_3080_ti", "kernel", "backward", 32768, 9),
    ],
)
def test_a_speed_table_has_every_power_of_two(published, hardware, level, mode, longest, cases) -> None:
    rows = published.rows
    chosen = (rows["hardware"] == hardware) & (rows["stem"] == "speed")
    rows = rows[chosen & (rows["level"] == level) & (rows["mode"] == mode)]
    for provider in (PUBLISHED, "warp"):
        lengths = list(rows.loc[rows["provider"] == provider, "T"])
        assert lengths == [128 * 2**n for n in range(cases)]
        assert lengths[-1] == longest


def test_there_are_as_many_rows_as_were_printed(published: Measurements) -> None:
    counts = published.rows.groupby(["hardware", "stem"]).size().to_dict()
    assert counts == {("h100", "speed"): 80, ("h100", "precision"): 24, ("rtx_3080_ti", "speed"): 72}


@pytest.mark.parametrize(
    ("hardware", "level", "mode", "T", "theirs", "warp", "ratio"),
    [
        ("h100", "api", "forward_backward", 128, 0.143, 0.108, 0.75),
        ("h100", "kernel", "forward_backward", 65536, 9.212, 8.573, 0.93),
        ("h100", "kernel", "forward", 512, 0.033, 0.044, 1.33),
        ("h100", "kernel", "backward", 4096, 0.366, 0.341, 0.93),
        ("rtx_3080_ti", "api", "forward_backward", 8192, 6.846, 7.328, 1.07),
        ("rtx_3080_ti", "kernel", "forward", 65536, 11.814, 11.742, 0.99),
        ("rtx_3080_ti", "kernel", "backward", 32768, 9.900, 9.824, 0.99),
    ],
)
def test_speeds_are_as_printed(published, hardware, level, mode, T, theirs, warp, ratio) -> None:
    rows = published.rows
    chosen = (rows["hardware"] == hardware) & (rows["level"] == level) & (rows["mode"] == mode) & (rows["T"] == T)
    of = rows[chosen].set_index("provider")
    assert (of.loc[PUBLISHED, "median_ms"], of.loc["warp", "median_ms"]) == (theirs, warp)
    assert of.loc[PUBLISHED, "printed_speedup"] == ratio


def test_printed_ratios_are_quotients_but_for_the_listed(published: Measurements) -> None:
    rows = published.rows[(published.rows["stem"] == "speed") & (published.rows["provider"] == PUBLISHED)]
    differ = rows[(rows["over_warp"] - rows["printed_speedup"]).abs() > 0.005]
    keys = zip(differ["hardware"], differ["level"], differ["mode"], differ["T"], strict=True)
    assert dict(zip(keys, differ["printed_speedup"], strict=True)) == NOT_THE_QUOTIENT


def test_rounding_of_the_printed_times_explains_every_printed_ratio() -> None:
    half = 0.0005
    for record in records("speed"):
        theirs, warp = (record["providers"][name]["median_ms"] for name in (PUBLISHED, "warp"))
        ratio = record["published"]["printed_speedup"]
        assert (warp - half) / (theirs + half) - 0.005 <= ratio <= (warp + half) / (theirs - half) + 0.005


@pytest.mark.parametrize(
    ("dtype", "T", "theirs", "warp"),
    [
        ("float32", 128, 6.55e-08, 7.14e-08),
        ("float16", 2048, 2.58e-04, 5.21e-04),
        ("bfloat16", 8192, 2.06e-03, None),
    ],
)
def test_errors_are_as_printed(published, dtype, T, theirs, warp) -> None:
    rows = published.rows[published.rows["stem"] == "precision"]
    of = rows[(rows["dtype"] == dtype) & (rows["T"] == T)].set_index("provider")
    assert of.loc[PUBLISHED, "states_rmse"] == theirs
    if warp is not None:
        assert of.loc["warp", "states_rmse"] == warp


def test_what_did_not_stay_finite_is_a_status(published: Measurements) -> None:
    rows = published.rows[(published.rows["stem"] == "precision") & (published.rows["status"] != "ok")]
    found = set(zip(rows["provider"], rows["dtype"], rows["T"], rows["status"], strict=True))
    assert found == {("warp", "float16", 8192, "diverged"), ("warp", "bfloat16", 8192, "overflowed")}
    assert rows.set_index("dtype").loc["bfloat16", "states_rmse"] == 6.67e18


def test_every_record_is_marked_published_and_fits_the_schema() -> None:
    found = [*records("speed"), *records("precision")]
    assert len(found) == 88
    assert len({record["case_id"] for record in found}) == len(found)
    for record in found:
        assert (
            record["published"]["source"]
            == "README of the public repository github.com/PheelaV/associative-scan-triton"
        )
        assert record["published"]["table"]
        assert set(record["providers"]) == {PUBLISHED, "warp"} <= set(PROVIDERS)
        assert record["provenance"]["gpu"] in ("H100 80GB", "RTX 3080 Ti 12GB")
        Case(**record["case"])
