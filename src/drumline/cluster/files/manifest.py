"""`FolderManifest`: what a project's folder consists of, without what is ignored.

    path        relative, with /        kind   file, link, dir (only those with nothing in them)
    executable  of files                size   of files
    digest      SHA-256 of a file's content, or where a link leads

Hashing is what takes time, so the digests of files that have not changed since come from a cache.
A file counts as unchanged while its size, inode and times are the same; one that was changed less
than two seconds before the scan is not put into the cache, since some file systems' clocks tick
as slowly as that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.cluster.files.ignore import ALWAYS, GIT, OURS, RESULTS, Ignored
from drumline.cluster.home import clusters_root
from drumline.core.errors import UsageError
from drumline.core.files import write_atomic
from drumline.node.folder import Entry

_FRESH_NS = 2_000_000_000


@dataclass(frozen=True)
class FolderManifest:
    """A folder's content."""

    root: Path
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """what does not travel though nobody ignored it, for a person"""
    packed: bytes = field(default=b"", repr=False)
    """the entries as the node reads them"""

    @functools.cached_property
    def compressed(self) -> bytes:
        """`packed`, as it travels."""
        return zlib.compress(self.packed, 1)

    @property
    def hash(self) -> str:
        """The same for the same content."""
        return hashlib.sha256(self.packed).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)


def scan(root: Path, cache: Path | None = None, apart: Path | None = None) -> FolderManifest:
    """Scan a folder.

    `cache`: where digests of files are kept from one scan to the next.
    `apart`: a folder that stays here, if it is below.

    Raises:
        UsageError: it is no project's folder, something in it cannot be read, or leads outside.
    """
    root = Path(os.path.realpath(root))
    if not root.is_dir():
        raise UsageError(f"{root} is no folder; name the one that your script is in")
    if root in (Path.home(), Path("/")):
        raise UsageError(
            f"{root} would be copied to the nodes as a whole, with your keys in it; go to your "
            f"project's own folder"
        )
    found = _Scan(root, _Cache(cache, root), apart)
    try:
        found.folder(str(root), "", Ignored.of(root))
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be read: {error.strerror}; make it readable, or name it in "
            f"{OURS}"
        ) from None
    found.cache.write()
    found.entries.sort()
    packed = json.dumps(found.entries, separators=(",", ":")).encode()
    return FolderManifest(root, tuple(found.entries), tuple(found.notes), packed)


class _Cache:
    """Digests of files, by path, with what showed that a file is the same."""

    def __init__(self, file: Path | None, root: Path) -> None:
        self._file = file
        self._root = str(root)
        self._old: dict[str, list[Any]] = {}
        self._new: dict[str, list[Any]] = {}
        self._before_ns = time.time_ns() - _FRESH_NS
        if file is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found = json.loads(file.read_text())
                if found["root"] == self._root:
                    self._old = dict(found["files"])

    def digest(self, path: str, full: str, found: os.stat_result) -> str:
        """Return the digest of a file's content."""
        marks = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
        known = self._old.get(path)
        if known is not None and known[:4] == marks:
            self._new[path] = known
            return str(known[4])
        with open(full, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if max(found.st_mtime_ns, found.st_ctime_ns) < self._before_ns:
            self._new[path] = [*marks, digest]
        return digest

    def write(self) -> None:
        if self._file is not None and self._new != self._old:
            content = json.dumps({"root": self._root, "files": self._new}, separators=(",", ":"))
            with contextlib.suppress(OSError):  # it only makes things quicker
                write_atomic(self._file, content)


class _Scan:
    """One walk through a folder."""

    def __init__(self, root: Path, cache: _Cache, apart: Path | None) -> None:
        self.root = str(root)
        self.cache = cache
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        private = clusters_root()  # the keys to the clusters
        self._stay = {os.path.realpath(one) for one in (private, apart) if one is not None}

    def folder(self, full: str, base: str, ignored: Ignored) -> None:
        """Scan a folder; `base` is its path from the root, with a slash at its end."""
        with os.scandir(full) as found:
            things = list(found)
        names = {thing.name for thing in things}
        if base and "pyvenv.cfg" in names:
            return
        texts = {name: _read(f"{full}/{name}") for name in (GIT, OURS) if name in names}
        if texts:
            ignored = ignored.inside(texts, base)
        count = len(self.entries)
        for thing in things:
            if thing.name in ALWAYS:
                continue
            is_folder = thing.is_dir(follow_symlinks=False)
            path = base + thing.name
            if is_folder and path == RESULTS:
                continue
            if ignored.leaves_out(path, thing.name, is_folder):
                continue
            if is_folder:
                if thing.path not in self._stay:
                    self.folder(thing.path, path + "/", ignored)
            elif thing.is_symlink():
                self._link(thing, path)
            elif thing.is_file():
                self._file(path, thing.path, thing.stat())
            else:
                self.notes.append(f"{path} is no file; it stays here")
        if base and len(self.entries) == count:
            self.entries.append(Entry(base[:-1], "dir"))

    def _file(self, path: str, full: str, found: os.stat_result) -> None:
        digest = self.cache.digest(path, full, found)
        executable = bool(found.st_mode & stat.S_IXUSR)
        self.entries.append(Entry(path, "file", executable, found.st_size, digest))

    def _link(self, thing: os.DirEntry[str], path: str) -> None:
        target = os.readlink(thing.path)
        goal = os.path.realpath(thing.path)
        here = os.path.dirname(path)
        leads = os.path.normpath(os.path.join(here, target))
        if goal == self.root or goal.startswith(self.root + "/"):
            if os.path.isabs(target) or leads.startswith(".."):
                target = os.path.relpath(goal, os.path.dirname(thing.path))
            self.entries.append(Entry(path, "link", digest=target))
        elif os.path.isfile(goal):
            self._file(path, goal, os.stat(goal))
        elif os.path.isdir(goal):
            raise UsageError(
                f"{path} leads to the folder {goal}, outside of {self.root}, which does not "
                f"travel; write /{path} into {OURS}, or put a copy in its place"
            )
        else:
            self.notes.append(f"{path} leads nowhere ({target}); it stays here")


def _read(file: str) -> str:
    with open(file, encoding="utf-8", errors="surrogateescape", newline="") as opened:
        return opened.read()
