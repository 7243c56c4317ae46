"""How long single calls took at shorter lengths, so that a hopeless length is refused before it is run."""

from __future__ import annotations

from dataclasses import replace

from experiments.config import Case

# A call that is this fraction of the limit long is bound by its work, which grows with T, not by its launches.
_BOUND_BY_WORK = 0.25


class Pace:
    """Seconds of one call by provider, case and length, as far as this process has seen them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Case], dict[int, float]] = {}

    def saw(self, name: str, case: Case, seconds: float) -> None:
        """Take note of a call that compiled nothing."""
        if not case.lengths:
            self._seen.setdefault(_key(name, case), {})[case.T] = seconds

    def refuses(self, name: str, case: Case, limit: float) -> str | None:
        """Why a case is not worth starting, in one sentence: in proportion to T one call is above the limit."""
        if case.lengths:
            return None  # what it takes depends on the sequences, not on their sum alone
        shorter = {T: seconds for T, seconds in self._seen.get(_key(name, case), {}).items() if T < case.T}
        if not shorter:
            return None
        T = max(shorter)
        expected = shorter[T] * case.T / T
        if shorter[T] < _BOUND_BY_WORK * limit or expected <= limit:
            return None
        return (
            f"one call is expected to take {expected:.3g} s, in proportion to {shorter[T]:.3g} s at T = {T}: more than "
            f"measure.longest_call_s = {limit:g}."
        )


def _key(name: str, case: Case) -> tuple[str, Case]:
    return name, replace(case, T=1)
