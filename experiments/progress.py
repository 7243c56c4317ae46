"""How far a sweep is: done, reused, failed and the time that is left."""

import sys
from contextlib import AbstractContextManager


class Progress(AbstractContextManager["Progress"]):
    """One line a measured case; on a terminal also a bar below them, where rich is installed."""

    def __init__(self, title: str, total: int) -> None:
        self.total = total
        self.done = self.reused = self.measured = self.failed = 0
        self._spent = 0.0
        self._bar = _bar(title, total) if sys.stdout.isatty() else None

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line, above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def reuse(self) -> None:
        """Count a case whose record still counts."""
        self.reused += 1
        self._advance()

    def skip_failed(self) -> None:
        """Count a case that failed earlier in this sweep, in a process that it ended."""
        self.failed += 1
        self._advance()

    def finish(self, name: str, seconds: float, outcome: str, failed: bool) -> None:
        """Count a case that was measured now, and print how it went."""
        self.measured += 1
        self.failed += failed
        self._spent += seconds
        self._advance()
        self.say(f"[{self.done}/{self.total}] {name}: {outcome}; {self.counts()}, {self.left()}")

    def counts(self) -> str:
        """How many cases were measured, reused and failed."""
        return f"{self.measured} measured, {self.reused} reused, {self.failed} failed"

    def left(self) -> str:
        """The time that the remaining cases take if they take as long as the measured ones."""
        remaining = self.total - self.done
        if not remaining:
            return "none left"
        return f"{remaining} left, about {duration(self._spent / max(self.measured, 1) * remaining)}"

    def _advance(self) -> None:
        self.done += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, counts=f"{self.counts()}, {self.left()}", refresh=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _bar(title: str, total: int):
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    bar = RichProgress(TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}"))
    bar.add_task(title, total=total, counts="")
    bar.start()
    return bar
