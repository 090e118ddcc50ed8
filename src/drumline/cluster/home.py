"""`ClusterHome`: the folder on this machine that holds what is known of one cluster.

$DRUMLINE_HOME/clusters/<name>/     (default ~/.drumline/clusters/<name>/)
    cluster.yaml      the spec that it was made from              written by `up`
    cluster.json      its id, when it was made, its nodes         written by `up`
    journal.jsonl     intents and results of all that costs       appended around each call
    lock              held by the command that changes the cluster; names its holder
    ssh/              id_ed25519, known_hosts, config, sockets    nobody else may read it
    jobs/<id>/        what `submit` knows of each job; what `pull` brought
    ansible/          the last run's log
    twin/             what simulated nodes consist of

All of it can be lost: a cloud's resources carry the cluster's name and id as tags, and `down` and
`reap` work from those alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic
from drumline.core.formatting import format_seconds

HOME = "DRUMLINE_HOME"
"""names the folder that all clusters' folders are in"""


def clusters_root() -> Path:
    """Return where all clusters' folders are."""
    home = os.environ.get(HOME)
    return (Path(home) if home else Path.home() / ".drumline") / "clusters"


@dataclass(frozen=True)
class ClusterHome:
    """One cluster's folder."""

    path: Path

    @classmethod
    def of(cls, name: str) -> ClusterHome:
        """Return the folder of the cluster of that name, whether it exists or not."""
        return cls(clusters_root() / name)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.path.name

    @property
    def ssh(self) -> Path:
        """Folder of keys, known hosts and configuration."""
        return self.path / "ssh"

    @property
    def journal(self) -> Path:
        """Intents and results."""
        return self.path / "journal.jsonl"

    @property
    def lock(self) -> Path:
        """Held by whoever changes the cluster."""
        return self.path / "lock"

    @property
    def sync(self) -> Path:
        """What is known of the files that were synced."""
        return self.path / "sync.json"

    @property
    def spec_file(self) -> Path:
        """The spec that the cluster was made from."""
        return self.path / "cluster.yaml"

    @property
    def jobs(self) -> Path:
        """Folder of the jobs."""
        return self.path / "jobs"

    @property
    def ansible(self) -> Path:
        """Folder for Ansible's files."""
        return self.path / "ansible"

    @property
    def twin(self) -> Path:
        """Folder of simulated nodes."""
        return self.path / "twin"

    def make(self) -> None:
        """Make the folder, for its owner alone."""
        for folder in (self.path, self.ssh, self.jobs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read_facts(self) -> dict[str, Any]:
        """Return what `cluster.json` says; empty where there is none."""
        try:
            facts: dict[str, Any] = json.loads((self.path / "cluster.json").read_text())
        except FileNotFoundError:
            return {}
        return facts

    def note(self, **facts: Any) -> None:
        """Add to `cluster.json`."""
        content = json.dumps({**self.read_facts(), **facts}, indent=2)
        write_atomic(self.path / "cluster.json", content + "\n")

    def cluster_id(self) -> str:
        """Return the cluster's id, made on first use; the next cluster of this name has another."""
        facts = self.read_facts()
        if "id" not in facts:
            self.note(id=secrets.token_hex(4))
        return str(self.read_facts()["id"])


@contextlib.contextmanager
def locked(home: ClusterHome) -> Iterator[None]:
    """Hold the cluster's lock; it goes with this process, whatever ends it.

    Raises:
        ClusterError: another command holds it; says which, whose and since when.
    """
    with _take(home) as file:
        file.truncate(0)
        with contextlib.suppress(OSError):  # it holds on a full disk, too, without its name
            os.write(file.fileno(), json.dumps(_holder()).encode())
        try:
            yield
        finally:
            file.truncate(0)


def _take(home: ClusterHome) -> TextIO:
    """Open the lock's file and lock it; again, where `down` has removed it in between."""
    while True:
        home.make()
        file = open(home.lock, "a+")  # noqa: SIM115  closed by whoever holds it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            note = file.read()
            file.close()
            raise ClusterError(
                f"the cluster {home.name} is being changed by {_describe(note)}; wait until that "
                f"has ended, or end it"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(home.lock)):
                return file
        file.close()


def _holder() -> dict[str, object]:
    words = " ".join(["drumline", *sys.argv[1:2]])
    return {"pid": os.getpid(), "what": words, "user": _user(), "at": time.time()}


def _user() -> str:
    try:
        return f"{getpass.getuser()} on {socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return f"user {os.getuid()} on {socket.gethostname()}"


def _describe(note: str) -> str:
    try:
        holder = json.loads(note)
        since = format_seconds(max(0.0, time.time() - holder["at"]))
        return f"`{holder['what']}` (process {holder['pid']} of {holder['user']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return "another command"
