"""`RunDir`: the layout of a run on disk, the one thing that both columns read and write.

runs/<name>-<n>/
    spec.yaml        the resolved spec                      written by the launcher
    manifest.json    versions, commit, hosts, argv          written by the launcher
    events/          rank-N.jsonl, node-N.jsonl             appended by ranks and agents
    logs/            rank-N.log: what each rank printed
    checkpoints/     step-N/                                written by the ranks
    tensorboard/     scalars                                written by the leader
    coverage.json    which rank saw which samples           written by the leader
    summary.json     the result; its presence means: done   written by the leader
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.core.errors import RunDirError, UsageError
from drumline.core.events import Event, read_events
from drumline.core.files import write_atomic

PROGRESS = "progress.json"
"""how far the ranks of a probe have come"""


@dataclass(frozen=True)
class RunDir:
    """One run's directory."""

    path: Path

    @classmethod
    def create(cls, name: str, *, root: Path, exact: Path | None = None) -> RunDir:
        """Make `root/<name>-<n>` with the first free n, or exactly the given path.

        Raises:
            UsageError: the exact path exists already.
            RunDirError: the folder cannot be written.
        """
        if exact is not None and os.path.lexists(exact):
            raise _taken(exact)
        try:
            run = cls((_first_free(root, name) if exact is None else _make(exact)).absolute())
            for folder in (run.events, run.logs):
                folder.mkdir()
        except OSError as error:
            raise RunDirError(
                f"cannot make a run directory in {exact or root}: {error.strerror}; "
                f"go to a folder that you can write to, or give one with --out"
            ) from None
        return run

    @classmethod
    def open(cls, name: str, *, root: Path) -> RunDir:
        """Find a run by its path, or by its name under `root`.

        Raises:
            UsageError: there is no such run; lists the newest ones.
        """
        for path in (Path(name), root / name):
            if (path / "manifest.json").is_file():
                return cls(path.absolute())
        known = [run.path.name for run in list_runs(root)[:5]]
        hint = f"there are none in {root}/; give a run's path, or start one with: drumline train"
        if known:
            hint = f"the newest are {', '.join(known)}; name one of them, or give a run's path"
        raise UsageError(f"no run {name!r}: {hint}")

    def word(self, *, root: Path) -> str:
        """Return what `open` finds it by: its name where it is under `root`, else its path."""
        return self.path.name if self.path.parent == root.absolute() else str(self.path)

    @property
    def spec_file(self) -> Path:
        """The resolved spec."""
        return self.path / "spec.yaml"

    @property
    def manifest_file(self) -> Path:
        """With what, where and by which command the run was started."""
        return self.path / "manifest.json"

    @property
    def events(self) -> Path:
        """Folder of the event logs."""
        return self.path / "events"

    @property
    def logs(self) -> Path:
        """Folder of what ranks printed."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Folder of the TensorBoard files."""
        return self.path / "tensorboard"

    @property
    def rendezvous(self) -> Path:
        """Folder where ranks find each other with `init: tcp` and `init: file`."""
        return self.path / "rendezvous"

    def rank_events(self, rank: int) -> Path:
        """The event log of one rank."""
        return self.events / f"rank-{rank}.jsonl"

    def node_events(self, node: int) -> Path:
        """The event log of one node's agent."""
        return self.events / f"node-{node}.jsonl"

    def rank_log(self, rank: int) -> Path:
        """What one rank printed."""
        return self.logs / f"rank-{rank}.log"

    def read_rank_events(self, world_size: int) -> list[list[Event]]:
        """Read the events of all ranks, in rank order."""
        return [read_events(self.rank_events(rank)) for rank in range(world_size)]

    def write_json(self, name: str, value: Any) -> None:
        """Write one of the JSON documents, atomically."""
        write_atomic(self.path / name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read one of the JSON documents; None where it is not there.

        Raises:
            RunDirError: the document is damaged.
        """
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunDirError(f"cannot read {path}: {error.strerror}") from None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RunDirError(
                f"{path} is damaged: it holds no JSON object; remove it, or restore it from a copy"
            )
        return value


def list_runs(root: Path) -> list[RunDir]:
    """Return the runs under a folder, newest first."""
    found = [(file.stat().st_mtime, file.parent) for file in root.glob("*/manifest.json")]
    return [RunDir(path.absolute()) for _, path in sorted(found, reverse=True)]


def _make(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
    except FileExistsError:  # another process was faster
        raise _taken(path) from None
    return path


def _taken(path: Path) -> UsageError:
    fix = "choose another --out"
    if (path / "manifest.json").is_file():
        fix += f", or continue that run with: drumline train resume={path}"
    return UsageError(f"the run directory {path} exists already; {fix}")


def _first_free(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / f"{name}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
