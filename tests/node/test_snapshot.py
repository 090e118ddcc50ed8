"""Snapshots of the code, and the checkpoints of an earlier run."""

from __future__ import annotations

import errno
import os

import pytest

from drumline.core.errors import RunDirError
from drumline.node.snapshot import bring_checkpoints, copy_code


def refuse(*_):
    raise OSError(errno.EXDEV, "this file system does not copy by itself")


@pytest.mark.parametrize("copy", [os.copy_file_range, refuse])
def test_a_snapshot_shares_nothing_with_the_code(tmp_path, monkeypatch, copy):
    monkeypatch.setattr(os, "copy_file_range", copy)
    code, work = tmp_path / "code", tmp_path / "work"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "a b ü.py").write_text("old")
    (code / "link").symlink_to("pkg")
    (code / "pkg" / "a b ü.py").chmod(0o755)
    os.utime(code / "pkg" / "a b ü.py", (1000, 1000))
    copy_code(code, work)
    found = (work / "pkg" / "a b ü.py").stat()
    assert (found.st_mtime, found.st_mode & 0o777) == (1000, 0o755)
    assert os.readlink(work / "link") == "pkg"
    with (work / "pkg" / "a b ü.py").open("a") as file:  # as a job may
        file.write(" and mine")
    assert (code / "pkg" / "a b ü.py").read_text() == "old"
    (code / "pkg" / "a b ü.py").write_text("new")
    assert (work / "pkg" / "a b ü.py").read_text() == "old and mine"
    copy_code(tmp_path / "absent", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_checkpoints_of_an_earlier_run_are_brought(tmp_path):
    step = tmp_path / "jobs" / "a-1" / "run" / "checkpoints" / "step-000000003"
    step.mkdir(parents=True)
    (step / "state.json").write_text("{}")
    bring_checkpoints(tmp_path, "jobs/a-1/run", tmp_path / "here")
    assert (tmp_path / "here" / step.name / "state.json").read_text() == "{}"
    inner = tmp_path / "elsewhere"
    for run in ("jobs/b-2/run", "../jobs/a-1/run"):
        with pytest.raises(RunDirError, match="there is no checkpoint to go on from in"):
            bring_checkpoints(inner, run, tmp_path / "there")
