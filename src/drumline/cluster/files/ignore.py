"""Which files of a project do not travel: what `.gitignore` and `.drumlineignore` say.

The rules are git's own (gitignore(5)): the last matching pattern of the deepest file decides; a
pattern with a slash in front or in the middle counts from its file's folder, one without at any
depth; a slash at the end means folders alone; `!` takes a file back, though not out of a folder
that is left out itself. Files of the same syntax called `.drumlineignore` come after, and win.

    rules of .git/info/exclude  <  .gitignore from the repository's top down  <  .drumlineignore

Git's index is not asked: a file that was added in spite of a pattern stays here, unless
`.drumlineignore` takes it back (`!file`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

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

    regex: str
    takes_back: bool
    folders_only: bool
    anchored: bool
    """matched against the path from the file's folder; else against the name alone"""


class Rules:
    """One ignore file: says of a path whether it is left out, taken back, or neither."""

    def __init__(self, text: str, base: str = "", above: str = "") -> None:
        self._base = base  # its folder, as seen from the project's, with a slash at its end
        self._above = above  # the project's folder, as seen from this file's, where it lies above
        found = list(_parse(text))
        self._all = [(rule, re.compile(rule.regex, re.DOTALL)) for rule in reversed(found)]
        # One look at all patterns together clears nearly every path
        self._names = _either(rule.regex for rule in found if not rule.anchored)
        self._paths = _either(rule.regex for rule in found if rule.anchored)

    def __bool__(self) -> bool:
        return bool(self._all)

    def judge(self, path: str, name: str, is_folder: bool) -> bool | None:
        """Return True where the path is left out, False where it is taken back, else None."""
        path = self._above + path[len(self._base) :]
        if not (self._names and self._names.fullmatch(name)) and not (
            self._paths and self._paths.fullmatch(path)
        ):
            return None
        for rule, regex in self._all:
            if rule.folders_only and not is_folder:
                continue
            if regex.fullmatch(path if rule.anchored else name):
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
        files = [one / GIT for one in folders[1 : folders.index(top) + 1]]
        files.append(top / ".git" / "info" / "exclude")
        found: list[Rules] = []
        for file in files:
            base = top if file.name == "exclude" else file.parent
            above = folder.relative_to(base).as_posix() + "/" if folder != base else ""
            with contextlib.suppress(OSError):
                found.append(Rules(file.read_text(errors="surrogateescape"), above=above))
        return cls(git=tuple(found))

    def inside(self, texts: dict[str, str], base: str) -> Ignored:
        """Return what holds in a folder that has these ignore files, by their names."""
        ours, git = self.ours, self.git
        if OURS in texts and (rules := Rules(texts[OURS], base)):
            ours = (rules, *ours)
        if GIT in texts and (rules := Rules(texts[GIT], base)):
            git = (rules, *git)
        return Ignored(ours, git)

    def leaves_out(self, path: str, name: str, is_folder: bool) -> bool:
        """Whether a path stays here; the folders above it are known not to."""
        for rules in (*self.ours, *self.git):
            verdict = rules.judge(path, name, is_folder)
            if verdict is not None:
                return verdict
        return False


def _parse(text: str) -> Iterator[Rule]:
    """Read the lines of an ignore file."""
    for raw in text.removeprefix("\ufeff").split("\n"):
        line = _without_end(raw.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        takes_back = line.startswith("!")
        line = line[takes_back:]
        folders_only = line.endswith("/")
        line = line.removesuffix("/")
        anchored = "/" in line
        line = line.removeprefix("/")
        if line and (regex := _translate(line)) is not None:
            yield Rule(regex, takes_back, folders_only, anchored)


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


def _without_end(line: str) -> str:
    """Take spaces off a line's end, but for one that a backslash holds."""
    bare = line.rstrip(" ")
    held = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if held % 2 and bare != line else bare


def _either(regexes: Iterable[str]) -> re.Pattern[str] | None:
    text = "|".join(f"(?:{regex})" for regex in regexes)
    return re.compile(text, re.DOTALL) if text else None
