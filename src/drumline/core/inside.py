"""Names of files that came from somebody else: whether they stay in the folder that is meant."""

from __future__ import annotations

from pathlib import PurePosixPath


def stays_inside(name: str) -> bool:
    """Whether a relative name leads to something below a folder, and nowhere else."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
