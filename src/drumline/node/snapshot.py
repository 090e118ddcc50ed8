"""What a job finds in its folder when it starts: a snapshot of the code, and earlier checkpoints.

A snapshot is made of copies: a job may write into what it has got (`open("log.txt", "a")`, or
torch.save over a model that was synced), and neither the code nor another job may see that. Where
the file system can share content until somebody changes it (XFS, btrfs), the kernel does so.
Checkpoints are links: we write them ourselves, and never into one that is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from drumline.core.errors import ClusterError, RunDirError

_MOST = 1 << 30
"""bytes that the kernel is asked to copy at once"""


def copy_code(source: Path, target: Path) -> None:
    """Copy a node's code (`source`) to a job's folder (`target`); no tree is an empty one."""
    _bring(source, target, _copy_file)


def bring_checkpoints(root: Path, run: str, target: Path) -> None:
    """Put an earlier job's checkpoints on this node where a new job looks for the newest.

    `run`: the earlier run's directory, below `root`.

    Raises:
        RunDirError: there are none.
    """
    root = root.resolve()
    source = (root / run / "checkpoints").resolve()
    if not source.is_relative_to(root) or not any(source.glob("step-*")):
        raise RunDirError(
            f"there is no checkpoint to go on from in {run} on the leader; start a new run"
        )
    _bring(source, target, _link_file)


def _bring(source: Path, target: Path, bring_file: Callable[[str, str], None]) -> None:
    try:
        target.mkdir()
        if source.is_dir():
            _bring_tree(str(source), str(target), bring_file)
    except OSError as error:
        what = f"{error.filename or source} to {target}: {error.strerror}"
        raise ClusterError(f"cannot copy {what}; make room on the node") from None


def _bring_tree(source: str, target: str, bring_file: Callable[[str, str], None]) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            here = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), here)
            elif entry.is_dir():
                os.mkdir(here)
                _bring_tree(entry.path, here, bring_file)
            elif entry.is_file():
                bring_file(entry.path, here)


def _copy_file(source: str, target: str) -> None:
    """Copy a file's content, mode and dates."""
    with open(source, "rb", 0) as old, open(target, "xb", 0) as new:
        found = os.fstat(old.fileno())
        with suppress(OSError):  # not between any two file systems; the rest goes the plain way
            while os.copy_file_range(old.fileno(), new.fileno(), _MOST):
                pass
        shutil.copyfileobj(old, new)
        os.fchmod(new.fileno(), found.st_mode & 0o777)
        os.utime(new.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another user's file, or a file system without links
        shutil.copy2(source, target)
