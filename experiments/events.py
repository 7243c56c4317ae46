"""What happened in one start of a sweep, a line of JSON each: a fresh process learns what a dead one was doing."""

import json
from pathlib import Path
from typing import Any

OPENED, STARTED, ENDED, NOTE = "sweep started", "case started", "case ended", "note"


class Events:
    """The append-only log of a run folder; a line torn by a kill is ignored when read."""

    def __init__(self, run_folder: Path) -> None:
        self.path = run_folder / "events.log"

    def add(self, event: str, **facts: Any) -> None:
        """Append one event at once."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **facts}, default=str) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All events so far."""
        events = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return events

    def count(self, event: str) -> int:
        """How often something happened."""
        return sum(each["event"] == event for each in self.read())

    def ended(self) -> dict[str, list[str]]:
        """The cases that ended, each with the providers that failed in it."""
        return {event["case_id"]: event["failures"] for event in self.read() if event["event"] == ENDED}

    def opened(self) -> float | None:
        """When the sweep was started, in seconds since the epoch; processes that go on with it do not count."""
        return next((event["at"] for event in self.read() if event["event"] == OPENED), None)

    def to_repeat(self) -> dict[str, str | None]:
        """The cases that were measured once and broke the CUDA context, each with whose call was running if known."""
        times: dict[str, list[dict[str, Any]]] = {}
        for event in self.read():
            if event["event"] == ENDED:
                times.setdefault(event["case_id"], []).append(event)
        return {
            case_id: ended[0].get("broken_by")
            for case_id, ended in times.items()
            if len(ended) == 1 and ended[0].get("broken")
        }

    def in_flight(self) -> dict[str, Any] | None:
        """The start of the case that was being measured when the process ended, with the last note about it."""
        open_start, last_note = None, None
        for event in self.read():
            if event["event"] == STARTED:
                open_start, last_note = event, None
            elif event["event"] == ENDED:
                open_start = None
            else:
                last_note = event
        return None if open_start is None else {**open_start, "last_note": last_note}
