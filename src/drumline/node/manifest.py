"""`Manifest`: what one writer's copy of a run consists of, with checksums."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from drumline.core.files import stays_inside

MANIFEST = "manifest.sha256.json"


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file of a copy."""

    key: str
    """where it is, relative to the manifest"""
    sha256: str
    bytes: int
    mtime: float

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StoredFile:
        """Read it back."""
        return cls(
            key=_safe(values["key"]),
            sha256=str(values["sha256"]),
            bytes=int(values["bytes"]),
            mtime=float(values["mtime"]),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one writer's copy of a run consists of."""

    run: str
    writer: str
    written: float = 0.0
    """seconds of the epoch"""
    ended: bool = False
    """whether the run had ended"""
    files: dict[str, StoredFile] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the document."""
        files = {name: vars(file) for name, file in sorted(self.files.items())}
        return json.dumps({**vars(self), "files": files}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, *, run: str, writer: str) -> Manifest:
        """Read it back.

        Args:
            text: the document; whoever may write to the storage may have made it up.
            run: whose copy it is, by the place where it was found, whatever it says itself.
            writer: by whom, likewise.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is no such document.
        """
        values = json.loads(text)
        files = values.pop("files").items()
        return cls(
            run=_part(run),
            writer=_part(writer),
            written=float(values["written"]),
            ended=bool(values["ended"]),
            files={_safe(name): StoredFile.from_json(file) for name, file in files},
        )


def _part(name: str) -> str:
    """Return a name that is one folder's, and no way elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no folder's name")
    return name


def _safe(name: str) -> str:
    if not stays_inside(name):
        raise ValueError(f"{name!r} leaves the folder")
    return name
