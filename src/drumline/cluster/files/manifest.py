"""`FolderManifest`: what a project's folder consists of, without what is ignored.

    path        relative, with /        kind   file, link, dir (only those with nothing in them)
    executable  of files                size   of files
    digest      SHA-256 of a file's content, or where a link leads

Hashing is what takes time, so the digests of files that have not changed since come from a cache.
A file counts as unchanged while its size, inode and times are the same; one that was changed less
than two seconds before the scan is not put into the cache, since some file systems' clocks tick
as slowly as that.

What is ignored follows git's own rules (gitignore(5)), and `.drumlineignore`, of the same syntax,
wins over `.gitignore`:

    rules of .git/info/exclude  <  .gitignore from the repository's top down  <  .drumlineignore

Git's index is not asked: a file that was added in spite of a pattern stays here, unless
`.drumlineignore` takes it back (`!file`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.cluster.home import clusters_root
from drumline.core.errors import UsageError
from drumline.core.files import hash_file, write_atomic
from drumline.node.folder import Entry

GIT, OURS = ".gitignore", ".drumlineignore"
ALWAYS = frozenset({".git", "__pycache__"})
"""never travel, whatever the files say"""
RESULTS = "runs"
"""nor does this folder of the root: what was pulled is not to travel back"""

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
    "punct": r"!-/:-@\[-`{-~",
}


@dataclass(frozen=True)
class Rule:
    """One line of an ignore file."""

    regex: re.Pattern[str]
    takes_back: bool
    folders_only: bool
    anchored: bool
    """matched against the path from the file's folder; else against the name alone"""


class Rules:
    """One ignore file: says of a path whether it is left out, taken back, or neither."""

    def __init__(self, text: str, base: str = "", above: str = "") -> None:
        self._base = base  # its folder, as seen from the project's, with a slash at its end
        self._above = above  # the project's folder, as seen from this file's, where it lies above
        self._all = list(_parse(text))[::-1]
        # One look at all patterns together clears nearly every path
        self._names, self._paths = (
            re.compile("|".join(rule.regex.pattern for rule in self._all if rule.anchored == path))
            for path in (False, True)
        )

    def judge(self, path: str, name: str, is_folder: bool) -> bool | None:
        """Return True where the path is left out, False where it is taken back, else None."""
        path = self._above + path[len(self._base) :]
        if self._names.fullmatch(name) or self._paths.fullmatch(path):
            for rule in self._all:
                fits = rule.regex.fullmatch(path if rule.anchored else name)
                if fits and (is_folder or not rule.folders_only):
                    return not rule.takes_back
        return None


@dataclass(frozen=True)
class Ignored:
    """All rules that hold in one folder, those that win first."""

    ours: tuple[Rules, ...] = ()
    git: tuple[Rules, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> Ignored:
        """Read what holds in a project's folder before its own files: those of a repository."""
        folders = [folder, *folder.parents]
        top = next((one for one in folders if (one / ".git").exists()), None)
        if top is None:
            return cls()
        bases = folders[1 : folders.index(top) + 1]
        found: list[Rules] = []
        for base, name in [*((base, GIT) for base in bases), (top, ".git/info/exclude")]:
            above = folder.relative_to(base).as_posix() + "/" if folder != base else ""
            with contextlib.suppress(OSError):
                found.append(Rules(_read(base / name), above=above))
        return cls(git=tuple(found))

    def inside(self, texts: dict[str, str], base: str) -> Ignored:
        """Return what holds in a folder that has these ignore files, by their names."""
        rules = {name: (Rules(text, base),) for name, text in texts.items()}
        return Ignored(rules.get(OURS, ()) + self.ours, rules.get(GIT, ()) + self.git)

    def leaves_out(self, path: str, name: str, is_folder: bool) -> bool:
        """Whether a path stays here; the folders above it are known not to."""
        verdicts = (rules.judge(path, name, is_folder) for rules in (*self.ours, *self.git))
        return next((verdict for verdict in verdicts if verdict is not None), False)


def _parse(text: str) -> Iterator[Rule]:
    for raw in text.removeprefix("\ufeff").split("\n"):
        line = raw.removesuffix("\r")
        bare = line.rstrip(" ")
        if bare != line:  # a backslash holds one space at the end
            held = len(bare) - len(bare.rstrip("\\"))
            line = bare + " " * (held % 2)
        if not line or line.startswith("#"):
            continue
        takes_back = line.startswith("!")
        line = line[takes_back:]
        folders_only = line.endswith("/")
        line = line.removesuffix("/")
        anchored = "/" in line
        line = line.removeprefix("/")
        if line and (regex := _translate(line)) is not None:
            yield Rule(re.compile(f"(?s:{regex})"), takes_back, folders_only, anchored)


def _translate(pattern: str) -> str | None:
    """Return a pattern as a regular expression for a whole path; None for one that fits nothing."""
    out, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            end = len(pattern) - len(pattern[at:].lstrip("*"))
            whole = (at == 0 or pattern[at - 1] == "/") and end - at > 1
            if whole and pattern[end : end + 1] in ("", "/"):  # **/ or /**: any number of folders
                out.append("(?:.*/)?" if pattern[end:] else ".*")
                end += 1
            else:
                out.append("[^/]*")
            at = end
        elif char == "[":
            found = _bracket(pattern, at + 1)
            if found is None:
                return None
            at = found[0]
            out.append(found[1])
        elif char == "\\" and at + 1 == len(pattern):
            return None
        else:
            at += char == "\\"
            out.append("[^/]" if char == "?" else re.escape(pattern[at]))
            at += 1
    return "".join(out)


def _bracket(pattern: str, at: int) -> tuple[int, str] | None:
    """Read a set of characters after its [; returns where it ends, and its regular expression."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    parts, first = [], True
    while at < len(pattern) and (first or pattern[at] != "]"):
        first = False
        if pattern.startswith("[:", at) and (end := pattern.find(":]", at)) > 0:
            if pattern[at + 2 : end] not in _CLASSES:
                return None
            parts.append(_CLASSES[pattern[at + 2 : end]])
            at = end + 2
            continue
        at += pattern[at] == "\\"
        low = pattern[at : at + 1]
        at += 1
        high = low
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            at += 1 + (pattern[at + 1] == "\\")
            high = pattern[at : at + 1]
            at += 1
        if low and low <= high:
            parts.append(f"{re.escape(low)}-{re.escape(high)}")
    if at >= len(pattern):
        return None
    chars = "".join(parts)
    if not chars:
        return at + 1, "[^/]" if negated else "(?!)"
    return at + 1, f"(?!/)[{'^' if negated else ''}{chars}]"


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


def scan_project(
    root: Path, cache: Path | None = None, apart: Path | None = None
) -> FolderManifest:
    """Scan the project's folder on this machine for the files that a sync brings to the nodes.

    `cache`: where digests of files are kept from one scan to the next.
    `apart`: a folder that stays here, if it is below.
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
        marks = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
        known = self._old.get(path)
        if known is not None and known[:4] == marks:
            self._new[path] = known
            return str(known[4])
        digest = hash_file(Path(full))
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
        if ours := {GIT, OURS} & names:
            ignored = ignored.inside({name: _read(Path(full, name)) for name in ours}, base)
        count = len(self.entries)
        for thing in things:
            is_folder = thing.is_dir(follow_symlinks=False)
            path = base + thing.name
            if thing.name in ALWAYS or (is_folder and path == RESULTS):
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
        target, goal = os.readlink(thing.path), os.path.realpath(thing.path)
        leads = os.path.normpath(os.path.join(os.path.dirname(path), target))
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


def _read(file: Path) -> str:
    return file.read_bytes().decode(errors="surrogateescape")
