"""`drumline doctor`: what it looks at, and what it removes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from drumline.core.task import SCRATCH
from drumline.launcher.doctor import stray_processes

# a launcher with a scratch folder and a process that does not end with it
OWNER = f"""
import os, subprocess, sys, time
from drumline.core.scratch import Scratch
scratch = Scratch()
environ = {{**os.environ, "{SCRATCH}": str(scratch.path)}}
stray = subprocess.Popen(["sleep", "60"], env=environ, stdout=subprocess.DEVNULL)
print(stray.pid, scratch.path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def temporary():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_one_line_for_each_thing_and_nothing_heavy(ask, folder):
    answer = ask("doctor", COLUMNS="200")
    assert (answer.code, answer.err) == (0, "")
    assert "torch" not in answer.loaded
    names = ("python", "torch", "GPU", "cores", "memory", "shared memory", "MPI", "commands")
    for name in (*names, "simulated nodes", "data folder"):
        assert f"  {name}  " in answer.out
    assert list(folder.iterdir()) == []


def test_what_is_missing_comes_with_the_way_out(ask):
    checks = json.loads(ask("doctor", "--json", PATH="/nowhere").out)["checks"]
    by_name = {check["name"]: check for check in checks}
    assert by_name["commands"]["good"] is False
    assert by_name["commands"]["way_out"] == "apt-get install iproute2 util-linux"
    assert by_name["simulated nodes"]["way_out"].startswith(
        "simulated nodes need the commands ip, tc, nsenter and unshare, which are not here; "
        "install them (apt-get install iproute2 util-linux), or "
    )


def test_clean_removes_what_a_killed_launch_left_and_nothing_else(ask, temporary):
    environ = {**os.environ, "TMPDIR": str(temporary)}
    owners = [
        subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=env)
        for env in (environ, environ)
    ]
    (dead, gone), (alive, kept) = (owner.stdout.readline().split() for owner in owners)
    owners[0].kill()
    owners[0].communicate()
    removed = json.loads(ask("doctor", "--clean", "--json", TMPDIR=str(temporary)).out)["removed"]
    assert [line for line in removed if dead in line] == [f"ended process {dead}: sleep 60"]
    assert f"removed {gone}" in removed
    assert not any(alive in line or kept in line for line in removed)
    assert Path(kept).exists()
    os.kill(int(alive), 9)
    owners[1].kill()
    owners[1].communicate()
    again = ask("doctor", "--clean", TMPDIR=str(temporary))
    assert f"removed {kept}" in again.out
    assert "nothing was left behind" in ask("doctor", "--clean", TMPDIR=str(temporary)).out
    assert int(alive) not in [pid for pid, _ in stray_processes()]
