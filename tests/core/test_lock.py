"""A lock belongs to an open descriptor: it outlives neither its holder nor its last copy."""

from __future__ import annotations

import os
import signal
import time

import pytest

from drumline.core.lock import FileLock, is_locked


def test_only_one_holds_it_and_the_holder_is_named(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire()
    assert first.acquire(0), "who holds it may ask again"
    first.write_holder("somebody")
    assert not second.acquire(0)
    assert second.descriptor == -1
    assert (second.read_holder(), is_locked(tmp_path / "lock")) == ("somebody", True)
    first.release()
    assert not is_locked(tmp_path / "lock")
    with second:
        assert is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "no such file")


def test_a_wait_is_bounded(tmp_path):
    with FileLock(tmp_path / "lock"):
        began = time.monotonic()
        assert not FileLock(tmp_path / "lock").acquire(0.2)
        assert time.monotonic() - began >= 0.2


def test_shared_locks_exclude_exclusive_ones_alone(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    one, other = (FileLock(folder, flags=os.O_RDONLY) for _ in range(2))
    assert one.acquire(shared=True)
    assert other.acquire(0, shared=True)
    assert not FileLock(folder, flags=os.O_RDONLY).acquire(0)


def test_the_kernel_releases_it_with_the_last_descriptor(tmp_path):
    path = tmp_path / "lock"
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        FileLock(path).acquire()
        os.write(told, b"1")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    assert is_locked(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_locked(path)
    lock = FileLock(path)
    lock.acquire()
    received = FileLock(path, descriptor=os.dup(lock.descriptor))
    lock.release()
    assert is_locked(path), "another has the descriptor"
    received.release()
    assert not is_locked(path)


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        FileLock(tmp_path / "no" / "folder").acquire(0)
