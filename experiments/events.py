"""What happened in one start of a sweep, a line of JSON each: a fresh process learns what a dead one was doing."""

import json
from pathlib import Path
from typing import Any

STARTED, ENDED, NOTE = "case started", "case ended", "note"


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

    def ended(self) -> dict[str, list[str]]:
        """The cases that ended, each with the providers that failed in it."""
        return {event["case_id"]: event["failures"] for event in self.read() if event["event"] == ENDED}

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
