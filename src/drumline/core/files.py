"""Files: replacing one atomically, hashing one, names from elsewhere that must stay in a folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path, PurePosixPath

from drumline.core.errors import RunDirError


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text file so that readers see the old content or the new, never half of it.

    `mode` says who may read it; with 0o600 nobody else may, at no moment.

    Raises:
        RunDirError: it cannot be written; nothing is left behind.
    """
    try:
        _write_and_replace(path, text, mode)
    except OSError as error:
        raise RunDirError(
            f"cannot write {path}: {error.strerror}; make room there, or check that you may write"
        ) from None


def _write_and_replace(path: Path, text: str, mode: int) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def stays_inside(name: str) -> bool:
    """Whether a relative name leads to something below a folder, and nowhere else."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def hash_file(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
