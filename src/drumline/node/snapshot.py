"""A snapshot of the synced code: what a job runs stays as it was when the job was submitted.

Files are hard links, which cost no room and next to no time. That holds as long as whoever changes
the code puts a new file in an old one's place, as `drumline submit` does, and never writes into it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from drumline.core.errors import ClusterError, RunDirError


def take_snapshot(source: Path, target: Path) -> None:
    """Make `target` a copy of the tree `source` by hard links; an absent tree is an empty one.

    Raises:
        ClusterError: a file cannot be linked, e.g. because the disk has no room for folders.
    """
    try:
        target.mkdir()
        if source.is_dir():
            _link_tree(str(source), str(target))
    except OSError as error:
        raise ClusterError(
            f"cannot copy {error.filename} to {target}: {error.strerror}; make room on the node"
        ) from None


def bring_checkpoints(root: Path, run: str, target: Path) -> None:
    """Put the checkpoints of an earlier run where a new one looks for the newest.

    Args:
        root: the node's own folder.
        run: the earlier run's directory, below it.
        target: where they go.

    Raises:
        RunDirError: there are none.
    """
    root = root.resolve()
    source = (root / run / "checkpoints").resolve()
    if not source.is_relative_to(root) or not any(source.glob("step-*")):
        raise RunDirError(
            f"there is no checkpoint to go on from in {run} on the leader; start a new run"
        )
    take_snapshot(source, target)


def _link_tree(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            here = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), here)
            elif entry.is_dir():
                os.mkdir(here)
                _link_tree(entry.path, here)
            elif entry.is_file():
                _link_file(entry.path, here)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another user's file, or a file system without links
        shutil.copy2(source, target)
