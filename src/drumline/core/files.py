"""Files: replaced atomically, flushed, hashed, read while they grow; names and new folders."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from drumline.core.errors import DrumlineError, RunDirError, UsageError


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text file so that readers see the old content or the new, never half of it.

    `mode` says who may read it; with 0o600 nobody else may, at no moment.

    Raises:
        RunDirError: it cannot be written; nothing is left behind.
    """
    try:
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
    except OSError as error:
        raise RunDirError(
            f"cannot write {path}: {error.strerror}; make room there, or check that you may write"
        ) from None


def fsync(path: Path) -> None:
    """Flush a file, or the list of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stays_inside(name: str) -> bool:
    """Whether a relative file name leads to something below a folder, and nowhere else."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def hash_file(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass
class GrowingFile:
    """A file that another process appends to, read line by line as it grows."""

    path: Path
    offset: int = 0
    """of what was not read yet"""

    def read(self, *, to_the_end: bool = False, most: int = -1) -> bytes:
        """Return the whole lines that were added since the last call; none where there is no file.

        Args:
            to_the_end: also return a last line without its newline.
            most: how many bytes to read at once; a longer line comes in pieces.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read(most)
        except FileNotFoundError:
            return b""
        whole = chunk.rfind(b"\n") + 1
        if whole > 0 if len(chunk) == most else not to_the_end:
            chunk = chunk[:whole]
        self.offset += len(chunk)
        return chunk


def make_empty_folder(folder: Path) -> None:
    """Make a folder to write new files into; one that is there must be empty.

    Raises:
        UsageError: something is in it.
        DrumlineError: it cannot be made.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "has files in it" if folder.is_dir() else "is a file"
            raise UsageError(
                f"{folder} {what}, and nothing of yours is overwritten; name a new folder, such as "
                f"{folder}-2"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DrumlineError(
            f"cannot make {folder}: {error.strerror}; name a folder that you can write to"
        ) from error
