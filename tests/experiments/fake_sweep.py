"""A sweep with a measuring module that takes no time and does what FAKE_MEASURE says.

FAKE_MEASURE maps a length to what happens at that T: `error`, `wrong`, `raise`, `broken`, `die` or `sleep`.
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
    if "FAKE_LOG" in os.environ:
        with Path(os.environ["FAKE_LOG"]).open("a") as file:
            file.write(case.id + "\n")
    happens = json.loads(os.environ.get("FAKE_MEASURE", "{}")).get(str(case.T))
    if happens == "sleep":
        time.sleep(60)
    if happens == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if happens == "raise":
        raise RuntimeError("the measuring code itself failed")
    ok = {"status": "ok", "reason": None, "samples_ms": [0.1 * case.T] * measure.repeats}
    results = {name: dict(ok) for name in providers}
    if happens in ("error", "broken"):
        reason = "CUDA error: device-side assert triggered" if happens == "broken" else "it failed on purpose"
        results[providers[-1]] = {"status": "error", "reason": reason}
        emit("traceback", {"provider": providers[-1], "text": f"Traceback: {reason}"})
    if happens == "wrong":
        results["ours"] = {"status": "wrong", "reason": "states are off by 1"}
    return {"providers": results, "protocol": {"timing": "fake"}}


MEASURERS = {stem: sweep.Measurer(__name__, each.times) for stem, each in sweep.MEASURERS.items()}

if __name__ == "__main__":
    sweep.MEASURERS = {stem: sweep.Measurer("tests.experiments.fake_sweep", m.times) for stem, m in MEASURERS.items()}
    sys.exit(sweep.main(sys.argv[1:]))
