"""The tests of the contract by item, as docs/contract.md lists them: `python -m tests.scan.items` counts and runs them.

Arguments are pytest's; `--collect-only` counts without running.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "contract.md"


def _read() -> dict[str, tuple[str, ...]]:
    """Item -> the tests named below its heading, as `test_file.py::test_name`."""
    items: dict[str, tuple[str, ...]] = {}
    parts = re.split(r"^### (.+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        items[heading] = tuple(re.findall(r"`(test_\w+\.py::test_\w+)`", text))
    return items


ITEMS = _read()


class Count:
    """A pytest plugin: outcomes by item."""

    def __init__(self) -> None:
        self.collected: Counter[str] = Counter()
        self.outcomes: dict[str, Counter[str]] = {item: Counter() for item in ITEMS}
        self.skips: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        listed = {name for names in ITEMS.values() for name in names}
        items[:] = [item for item in items if _name(item.nodeid) in listed]
        self.collected.update(_name(item.nodeid) for item in items)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            for item, names in ITEMS.items():
                if _name(report.nodeid) in names:
                    self.outcomes[item][report.outcome] += 1
            if report.skipped:
                self.skips[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def lines(self) -> list[str]:
        """A line for each item, and the reasons of skips."""
        lines = [f"{'item':<62}{'tests':>7}{'passed':>8}{'skipped':>9}{'failed':>8}"]
        total = 0
        for item, names in ITEMS.items():
            outcome = self.outcomes[item]
            # Under xdist (`-n`) workers collect, and outcomes are all that comes here.
            tests = sum(self.collected[name] for name in names) or sum(outcome.values())
            total += tests
            lines.append(f"{item:<62}{tests:>7}{outcome['passed']:>8}{outcome['skipped']:>9}{outcome['failed']:>8}")
        return [*lines, f"{total} tests in all.", *(f"skipped {n}: {why}" for why, n in self.skips.most_common())]


def _name(nodeid: str) -> str:
    """`tests/scan/test_x.py::test_y[case]` as `test_x.py::test_y`."""
    return nodeid.rpartition("/")[2].partition("[")[0]


def main(arguments: list[str]) -> int:
    """Run every test that the document names."""
    files = sorted({name.partition("::")[0] for names in ITEMS.values() for name in names})
    count = Count()
    folder = Path(__file__).parent
    status = pytest.main([*(str(folder / file) for file in files), "-q", *arguments], plugins=[count])
    print("\n".join(count.lines()))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
