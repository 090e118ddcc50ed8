from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import drumline.core.scratch as scratch_module
from drumline.core.errors import DrumlineError
from drumline.core.scratch import Scratch

# makes a scratch folder with a file in it, says where, and waits to be killed
OWNER = """
import sys, time
from drumline.core.scratch import Scratch
scratch = Scratch()
(scratch.path / "file").touch()
print(scratch.path, flush=True)
time.sleep(60)
"""

# gets one Ctrl-C after the other, each at some instruction of a folder's life
INTERRUPTED = """
import os, random, signal, threading, time
from drumline.core.scratch import Scratch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests are in background
for _ in range(150):
    press = threading.Timer(random.uniform(0, 0.004), os.kill, (os.getpid(), signal.SIGINT))
    try:
        press.start()
        with Scratch() as scratch:
            for name in "abcdefgh":
                (scratch.path / name).mkdir()
        time.sleep(10)
    except KeyboardInterrupt:
        pass
    press.join()
"""


@pytest.fixture
def temporary(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_is_private_and_goes_with_its_context(temporary):
    with Scratch() as scratch:
        (scratch.path / "file").touch()
        assert scratch.path.parent == temporary
        assert scratch.path.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_what_a_killed_owner_left_is_removed_by_the_next(temporary):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(temporary)},
    ) as owner:
        path = owner.stdout.readline().strip()
        with Scratch():
            assert (temporary / path / "file").exists(), "its owner lives"
        owner.kill()
    with Scratch() as scratch:
        assert list(temporary.iterdir()) == [scratch.path]


def test_folders_of_others_stay(temporary):
    (temporary / "drumline-my-clone").mkdir()
    (temporary / "drumline-my-clone" / "README").touch()
    (temporary / "drumline-a-file").touch()
    with Scratch():
        assert (temporary / "drumline-my-clone" / "README").exists()
        assert (temporary / "drumline-a-file").exists()


def dead_folder(path):
    path.mkdir(parents=True)
    (path / ".drumline-scratch").touch()
    (path / "file").touch()
    return path


def test_a_link_to_a_folder_of_ours_is_not_followed(temporary):
    dead = dead_folder(temporary / "elsewhere" / "drumline-dead")
    (temporary / "drumline-x").symlink_to(dead)
    assert scratch_module.sweep() == []
    assert (dead / "file").exists()


def test_a_folder_that_is_swapped_for_a_link_is_not_followed(temporary, monkeypatch):
    dead, home = dead_folder(temporary / "drumline-x"), temporary / "home"
    home.mkdir()
    (home / "thesis").touch()
    usual = scratch_module._hold

    def hold_and_swap(*args):
        lock = usual(*args)
        dead.rename(temporary / "aside")
        dead.symlink_to(home)
        return lock

    monkeypatch.setattr(scratch_module, "_hold", hold_and_swap)
    assert scratch_module.sweep() == []
    assert (home / "thesis").exists()
    assert list((temporary / "aside").iterdir()) == []


def test_a_removal_that_was_cut_short_is_finished_by_the_next(temporary):
    path = Scratch().path  # nobody keeps it: it is removed at once
    assert not path.exists()
    path.mkdir(mode=0o700)
    (path / ".drumline-scratch").touch()  # the lock goes last
    with Scratch() as scratch:
        assert list(temporary.iterdir()) == [scratch.path]


@pytest.mark.slow
def test_an_interrupt_comes_before_or_after_a_folder_is_made_or_removed(temporary):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "TMPDIR": str(temporary)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert list(temporary.iterdir()) == []


def test_many_at_once_do_not_sweep_each_other(temporary):
    words = (
        "from drumline.core.scratch import Scratch\n"
        "for _ in range(100):\n"
        "    with Scratch() as scratch: (scratch.path / 'file').touch()\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", words], env={"TMPDIR": str(temporary)})
        for _ in range(4)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert list(temporary.iterdir()) == []


def test_a_long_path_has_no_room_for_sockets(temporary, monkeypatch):
    long = temporary / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Scratch() as scratch:
        assert scratch.path.parent == Path("/tmp")


def test_a_missing_folder_is_told_with_the_way_out(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    with pytest.raises(DrumlineError, match="set TMPDIR to one that can be written"):
        Scratch()
