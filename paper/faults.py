"""What the records say of peers that were outside their error budget or their tensors: versions, lengths, sentences."""

import pandas as pd

from paper.measurements import HOPELESS, Machine, Measurements
from paper.typeset import escape, listed, power

PACKAGES = {"warp": "accelerated-scan", "hgrn": "fla-core"}
HARDER = {"gates": "uniform_099_1", "dtype": "float32", "provider": "hgrn"}
Said = tuple[str, str, pd.Series]


def make(measurements: Measurements) -> list[Said]:
    """Key, text and the row that it is from, for what did occur."""
    return [
        *(said for machine in _main(measurements, "speed") for said in _speed(measurements, machine)),
        *(said for machine in _main(measurements, "precision") for said in _precision(measurements, machine)),
    ]


def _main(measurements: Measurements, stem: str) -> list[Machine]:
    machine = measurements.main(stem)
    return [] if machine is None else [machine]


def _speed(measurements: Measurements, machine: Machine) -> list[Said]:
    rows = measurements.of(machine, "speed").sort_values("T", kind="stable")
    found: list[Said] = []
    chosen = (rows["provider"] == "warp") & (rows["dtype"] == "float32") & (rows["status"] == "wrong")
    wrong = rows[chosen & (rows["level"] == "kernel") & (rows["mode"] == "backward")]
    if len(wrong):
        first = wrong.iloc[0]
        found += _version("warp", first)
        found.append(("faults.warp.lengths", listed([str(T) for T in wrong["T"]]), first))
        found.append(("faults.warp.reason", escape(str(first["reason"]).rstrip(".")), first))
    for provider in ("warp", "scalar"):
        of_provider = rows[rows["provider"] == provider]
        outside = of_provider[of_provider["reason"].str.contains("past the end of", na=False)]
        if len(outside):
            sentence = str(outside.iloc[0]["reason"]).partition(", so")[0]
            found.append((f"faults.{provider}.bounds", escape(sentence), outside.iloc[0]))
    padded = rows[(rows["provider"] == "warp") & rows["layout"].notna()]
    if len(padded):
        found.append(("faults.warp.layout", escape(str(padded.iloc[0]["layout"]).partition(":")[0]), padded.iloc[0]))
    return found


def _precision(measurements: Measurements, machine: Machine) -> list[Said]:
    rows = measurements.of(machine, "precision", **HARDER)
    rows = rows[rows["states_factor"] > HOPELESS].sort_values("states_factor", kind="stable")
    if rows.empty:
        return []
    worst = rows.iloc[-1]
    return [
        *_version("hgrn", worst),
        ("faults.hgrn.factor", power(float(worst["states_factor"])), worst),
        ("faults.hgrn.shortest", str(rows["T"].min()), rows.sort_values("T", kind="stable").iloc[0]),
        ("faults.hgrn.T", str(worst["T"]), worst),
    ]


def _version(provider: str, row: pd.Series) -> list[Said]:
    packages = row["packages"] if isinstance(row["packages"], dict) else {}
    version = packages.get(PACKAGES[provider])
    return [] if version is None else [(f"faults.{provider}.version", escape(version), row)]
