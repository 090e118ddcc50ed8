"""R, the node's folder, as far as files travel into it: R/code with its lock, and the busy sign.

R/code is the project's folder. Whoever takes a snapshot of it for a job holds the lock meanwhile.
R/code.json records what the last sync left, so that unchanged files need not be read again.

R/limits/busy is touched while a job runs or files travel. A node that nobody has touched for a
while ends itself (`cluster/life/limits.sh`).

Standard library only, Python 3.8.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple

from drumline.core.json_lines import Message
from drumline.core.lock import FileLock

EVERY_S = 10.0
LOCK_S = 60.0
_PIECE = 1 << 20


class BusySign:
    """Keeps the node from ending itself; call `tick` as often as something moves."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._folder = os.path.join(root, "limits")
        self._next = float("-inf")

    def tick(self) -> None:
        """Touch the file, if that was not done just now."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        with suppress(OSError):  # a disk that is full must not end what goes on
            os.makedirs(self._folder, exist_ok=True)
            path = os.path.join(self._folder, "busy")
            with open(path, "a"):
                os.utime(path)


class Entry(NamedTuple):
    """One thing that travels; `cluster.files.manifest` says what its parts are."""

    path: str
    kind: Literal["file", "link", "dir"]
    executable: bool = False
    size: int = 0
    digest: str = ""


class Code:
    """The folder that is kept the same, and the note of what it was left as."""

    def __init__(self, root: str) -> None:
        self.folder = os.fsencode(root) + b"/code"
        self.note = self.folder + b".json"
        self.incoming = self.folder + b".incoming"
        self.files: dict[str, tuple[str, bool]] = {}
        self.links: dict[str, str] = {}
        self.folders: list[str] = []
        self.ours: set[str] = set()
        """what a sync has brought"""
        self.hash = ""

    def noted_hash(self) -> str:
        """Return the hash that the last sync left; "" where it was cut short, or there was none."""
        return str(self._read().get("hash", ""))

    def at(self, path: str) -> bytes:
        """Return where a path is."""
        return self.folder + b"/" + path.encode("utf-8", "surrogateescape")

    def has(self, entry: Entry) -> bool:
        """Whether a file is as an entry says."""
        return self.files.get(entry.path) == (entry.digest, entry.executable)

    def scan(self) -> None:
        """Scan the folder. Files that are as they were left are not read again.

        What was not brought here by a sync is not ours to count or to remove: a notebook that
        somebody has written on the node, say. Without a note nobody knows which is which: then
        nothing is removed.
        """
        known = self._read()
        noted = known.get("files", {})
        ours = {*noted, *known.get("links", {}), *known.get("folders", [])} if known else None
        self.ours = ours or set()
        self.files, self.links, self.folders = {}, {}, []
        same = self._walk(self.folder, "", noted, ours)
        same = same and len(noted) == len(self.files)
        same = same and known.get("links") == self.links and known.get("folders") == self.folders
        self.hash = known["hash"] if same else ""

    def _walk(self, folder: bytes, base: str, noted: Message, ours: set[str] | None) -> bool:
        same = True
        try:
            with os.scandir(folder) as found:
                things = sorted(found, key=lambda thing: thing.name)
        except FileNotFoundError:
            return False
        for thing in things:
            path = base + thing.name.decode("utf-8", "surrogateescape")
            if ours is not None and path not in ours:
                continue
            if thing.is_symlink():
                self.links[path] = os.readlink(thing.path).decode("utf-8", "surrogateescape")
            elif thing.is_dir():
                self.folders.append(path)
                same = self._walk(thing.path, path + "/", noted, ours) and same
            else:
                now = _marks(thing.stat(follow_symlinks=False))
                before = noted.get(path)
                if not before or before[:4] != now:
                    same = False
                    before = [*now, _digest_of(thing.path)]
                self.files[path] = (before[4], bool(now[3] & stat.S_IXUSR))
        return same

    def intend(self, entries: list[Entry]) -> None:
        """Note, without a hash, what is ours while it changes: what was there, what is to come."""
        files = [*self.files, *(entry.path for entry in entries if entry.kind == "file")]
        links = [*self.links, *(entry.path for entry in entries if entry.kind == "link")]
        folders = sorted({*self.folders, *wanted_folders(entries)})
        self._write("", dict.fromkeys(files), dict.fromkeys(links, ""), folders)

    def write_note(self, digest: str, entries: list[Entry]) -> None:
        """Note what the folder was left as."""
        files = {
            entry.path: [*_marks(os.lstat(self.at(entry.path))), entry.digest]
            for entry in entries
            if entry.kind == "file"
        }
        links = {entry.path: entry.digest for entry in entries if entry.kind == "link"}
        self._write(digest, files, links, wanted_folders(entries))

    def _read(self) -> Message:
        with suppress(OSError, ValueError), open(self.note, encoding="utf-8") as file:
            return dict(json.load(file))
        return {}

    def _write(self, digest: str, files: Message, links: Message, folders: list[str]) -> None:
        content = {"hash": digest, "files": files, "links": links, "folders": folders}
        draft = self.note + b".new"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(content, file, separators=(",", ":"))
        os.replace(draft, self.note)


def _marks(found: os.stat_result) -> list[int]:
    """Return what shows that a file is the same."""
    return [found.st_size, found.st_mtime_ns, found.st_ino, stat.S_IMODE(found.st_mode)]


def _digest_of(path: bytes) -> str:
    """Return the digest of a file's content; "" for what is no file."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return ""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(_PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()


def wanted_folders(entries: list[Entry]) -> list[str]:
    """Return all folders that R/code on the node must have for a sync, parents first."""
    found = {entry.path for entry in entries if entry.kind == "dir"}
    for entry in entries:
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return sorted(found, key=lambda path: path.encode("utf-8", "surrogateescape").split(b"/"))


@contextmanager
def lock_code(root: str, *, within_s: float = LOCK_S) -> Iterator[None]:
    """Hold R/code.lock, as whoever takes a snapshot of R/code does.

    Raises:
        TimeoutError: another process has held it for so long.
    """
    lock = FileLock(os.path.join(root, "code.lock"))
    if not lock.acquire(within_s):
        raise TimeoutError(
            f"another sync or the start of a job holds {lock.path} for {within_s:.0f} s"
        )
    try:
        yield
    finally:
        lock.release()
