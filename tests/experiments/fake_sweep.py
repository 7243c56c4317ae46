"""A sweep with a measuring module that takes no time and does what FAKE_MEASURE says.

FAKE_MEASURE maps a length to what happens at that T: `error`, `wrong`, `raise`, `die` or `sleep`; `broken`: the last
provider named in FAKE_BREAKS breaks the context; `broken once`: the same, unless that case has been measured before.
FAKE_LOG names a file that gets one line a measured case. Run as the supervisor runs the real one:
`python -m tests.experiments.fake_sweep RUN_FOLDER/plan.json`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from experiments import sweep


def run_case(case, providers, measure, device, emit):
    emit("stage", {"provider": providers[0], "stage": "sampling"})
    happens = json.loads(os.environ.get("FAKE_MEASURE", "{}")).get(str(case.T))
    if "FAKE_LOG" in os.environ:
        log = Path(os.environ["FAKE_LOG"])
        if happens == "broken once":
            happens = None if log.exists() and case.id in log.read_text() else "broken"
        with log.open("a") as file:
            file.write(case.id + "\n")
    if happens == "sleep":
        time.sleep(60)
    if happens == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if happens == "raise":
        raise RuntimeError("the measuring code itself failed")
    ok = {"status": "ok", "reason": None, "samples_ms": [0.1 * case.T] * measure.repeats}
    results = {name: dict(ok) for name in providers}
    protocol = {"timing": "fake"}
    breaks = os.environ.get("FAKE_BREAKS", "ref")
    if happens == "error" or (happens == "broken" and breaks in providers):
        reason = "CUDA error: device-side assert triggered" if happens == "broken" else "it failed on purpose"
        failing = breaks if happens == "broken" else providers[-1]
        results[failing] = {"status": "error", "reason": reason}
        emit("traceback", {"provider": failing, "text": f"Traceback: {reason}"})
        if happens == "broken":
            protocol["context_broken_by"] = breaks
    if happens == "wrong":
        results["ours"] = {"status": "wrong", "reason": "states are off by 1"}
    return {"providers": results, "protocol": protocol}


MEASURERS = {stem: sweep.Measurer(__name__, each.times) for stem, each in sweep.MEASURERS.items()}

if __name__ == "__main__":
    sweep.MEASURERS = {stem: sweep.Measurer("tests.experiments.fake_sweep", m.times) for stem, m in MEASURERS.items()}
    sys.exit(sweep.main(sys.argv[1:]))
