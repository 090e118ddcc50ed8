"""`Results`: what the experiments of a lab left, read back by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.core.errors import DivergenceError
from drumline.core.events import read_events
from drumline.core.rundir import RunDir
from drumline.labs.experiment import runs_folder
from drumline.labs.settings import LabSettings
from drumline.report.runs.record import RunRecord, read_record


@dataclass(kw_only=True)
class Results:
    """Runs and documents by the names of their experiments."""

    folder: Path
    settings: LabSettings
    failed: dict[str, str] = field(default_factory=dict)
    """what did not come to an end, and why"""
    _records: dict[str, RunRecord] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether an experiment came to its end."""
        path = runs_folder(self.folder) / name
        return (path / "summary.json").is_file() or path.with_name(f"{name}.json").is_file()

    def diverged(self, name: str) -> bool:
        """Whether a training run ended because its loss was no number any more."""
        return any(
            event["event"] == "error" and event.get("type") == DivergenceError.__name__
            for log in (runs_folder(self.folder) / name / "events").glob("rank-*.jsonl")
            for event in read_events(log)
        )

    def until_then(self, name: str) -> RunRecord:
        """Return a training run as far as it came."""
        return read_record(RunDir(runs_folder(self.folder) / name))

    def record(self, name: str) -> RunRecord | None:
        """Return a training run; None where it did not come to its end."""
        if not self.has(name):
            return None
        if name not in self._records:
            self._records[name] = read_record(RunDir(runs_folder(self.folder) / name))
        return self._records[name]

    def records(self, names: list[str]) -> dict[str, RunRecord]:
        """Return those of several runs that came to their end."""
        found = {name: self.record(name) for name in names}
        return {name: record for name, record in found.items() if record is not None}

    def document(self, name: str) -> dict[str, Any] | None:
        """Return what a measurement gave; None where it failed."""
        path = runs_folder(self.folder) / f"{name}.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None
