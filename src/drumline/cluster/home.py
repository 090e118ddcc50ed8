"""`ClusterHome`: the folder on this machine that holds what is known of one cluster.

$DRUMLINE_HOME/clusters/<name>/     (default ~/.drumline/clusters/<name>/)
    cluster.yaml      the spec that it was made from              written by `up`
    cluster.json      its id, when it was made, its nodes         written by `up`
    journal.jsonl     intents and results of all that costs       appended around each call
    lock              held by the command that changes the cluster; names its holder
    sync.json         digests of the project's files, as they were when they were synced
    ssh/              id_ed25519, known_hosts, config, sockets    nobody else may read it
    jobs/<id>/        what `submit` knows of each job; what `pull` brought
    ansible/          the last run's log
    twin/             what simulated nodes consist of

All of it can be lost: a cloud's resources carry the cluster's name and id as tags, and `down` and
`reap` work from those alone.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from drumline.cluster.providers import Machine
from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic
from drumline.core.formatting import format_seconds
from drumline.core.json_lines import Message, Record
from drumline.core.lock import FileLock

HOME = "DRUMLINE_HOME"
"""names the folder that all clusters' folders are in"""


def clusters_root() -> Path:
    """Return the folder on this machine that holds the folders of all clusters."""
    home = os.environ.get(HOME)
    return (Path(home) if home else Path.home() / ".drumline") / "clusters"


@dataclass(frozen=True, kw_only=True)
class ClusterFacts(Record):
    """What is known of a cluster (`cluster.json`)."""

    id: str | None = None
    folder: str = "."
    """where its cluster.yaml is"""
    machines: tuple[Machine, ...] = ()
    """of the last `up`"""
    former: tuple[Machine, ...] = ()
    """those that they replaced, each with its end"""
    deadline: float | None = None
    """when nodes end themselves, as seconds of the epoch; None: never"""
    began: float = 0.0
    """since when the budget counts"""
    limits: Mapping[str, float | None] | None = None
    """what the deadline was computed from"""

    @classmethod
    def from_json(cls, values: Message) -> Self:
        """Read it, also where another version has written it."""
        kept = {key: values.get(key, ()) for key in ("machines", "former")}
        machines = {key: [Machine.from_json(one) for one in ones] for key, ones in kept.items()}
        return super().from_json({**values, **machines})


class ClusterHome:
    """One cluster's folder, whether it exists or not; the module's docstring draws it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.spec_file = path / "cluster.yaml"
        self.facts_file = path / "cluster.json"
        self.journal = path / "journal.jsonl"
        self.lock = path / "lock"
        self.sync = path / "sync.json"
        self.ssh = path / "ssh"
        self.ssh_config = self.ssh / "config"
        self.known_hosts = self.ssh / "known_hosts"
        self.jobs = path / "jobs"
        self.ansible = path / "ansible"
        self.twin = path / "twin"

    @classmethod
    def of(cls, name: str) -> ClusterHome:
        """Return the folder of the cluster of that name."""
        return cls(clusters_root() / name)

    def make(self) -> None:
        """Make the folder, for its owner alone."""
        for folder in (self.path, self.ssh, self.jobs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read_facts(self) -> ClusterFacts:
        """Return what `cluster.json` says; nothing where there is none."""
        return ClusterFacts.from_json(self._read())

    def note(self, **facts: Any) -> None:
        """Add to `cluster.json`."""
        write_atomic(self.facts_file, json.dumps({**self._read(), **facts}, indent=2) + "\n")

    def _read(self) -> Message:
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads(self.facts_file.read_text()))
        return {}

    def cluster_id(self) -> str:
        """Return the cluster's id, made on first use; the next cluster of this name has another."""
        known = self.read_facts().id
        if known is None:
            known = secrets.token_hex(4)
            self.note(id=known)
        return known

    def results(self, job_id: str) -> Path:
        """Return where a job's results are pulled to by default: in the runs of the project."""
        folder = Path(self.read_facts().folder)
        return (folder if folder.is_dir() else Path.cwd()) / "runs" / job_id

    def note_pulled(self, job_id: str, into: Path) -> None:
        """Note where a job's results were pulled to."""
        note = self.jobs / job_id / "pulled"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(into.absolute()))

    def pulled(self) -> dict[str, Path]:
        """Return the folders that jobs were pulled to, as far as they are still there."""
        noted = {note.parent.name: Path(note.read_text()) for note in self.jobs.glob("*/pulled")}
        return {job_id: folder for job_id, folder in noted.items() if folder.is_dir()}


@contextlib.contextmanager
def lock_cluster(home: ClusterHome) -> Iterator[None]:
    """Hold the cluster's lock: only one command changes a cluster at a time."""
    lock = FileLock(home.lock)
    while True:
        try:
            home.make()
            held = lock.acquire(0)
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise ClusterError(
                f"cannot write {home.path}, where Drumline keeps what it knows of a cluster: "
                f"{error.strerror}; name a folder that you can write to: export {HOME}=…"
            ) from None
        if not held:
            raise ClusterError(
                f"the cluster {home.name} is being changed by {_describe(lock.read_holder())}; "
                f"wait until that has ended, or end it"
            )
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), os.stat(home.lock)):
                break
        lock.release()  # `down` has removed the file in between
    with lock:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a user without a name
            user = f"user {os.getuid()}"
        holder = {
            "pid": os.getpid(),
            "what": " ".join(["drumline", *sys.argv[1:2]]),
            "user": f"{user} on {socket.gethostname()}",
            "at": time.time(),
        }
        lock.write_holder(json.dumps(holder))
        try:
            yield
        finally:
            lock.write_holder("")


def _describe(note: str) -> str:
    try:
        holder = json.loads(note)
        since = format_seconds(max(0.0, time.time() - holder["at"]))
        return f"`{holder['what']}` (process {holder['pid']} of {holder['user']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return "another command"
