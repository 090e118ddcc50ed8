"""CPU throttling of real processes: how much they get, and that none is left stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from drumline.agent.cpu_throttle import CpuThrottle

# signs in, says so, computes for a while and tells which share of that time it had the CPU
SPIN = """
import sys, time
from drumline.agent.cpu_throttle import sign_in
sign_in(sys.argv[1])
print("ready", flush=True)
time.sleep(0.1)
wall, cpu = time.monotonic(), time.process_time()
while time.monotonic() - wall < float(sys.argv[2]):
    pass
print((time.process_time() - cpu) / (time.monotonic() - wall))
"""


def spin(throttle: CpuThrottle, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SPIN, throttle.register, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def state(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_computes_its_share_of_the_time(tmp_path):
    with CpuThrottle(0.25, tmp_path / "register") as throttle:
        workers = [spin(throttle, 1.5) for _ in range(2)]
        shares = [float(worker.communicate(timeout=30)[0]) for worker in workers]
    assert max(shares) < 0.35
    assert min(shares) > 0.02, "slow, not stuck"


def test_who_ends_is_forgotten_and_who_lives_goes_free(tmp_path):
    with CpuThrottle(0.05, tmp_path / "register") as throttle:
        ended, lives = spin(throttle, 60), spin(throttle, 60)
        ended.kill()
        ended.wait()
        deadline = time.monotonic() + 10
        while (tmp_path / "register" / str(ended.pid)).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        left = [path.name for path in (tmp_path / "register").iterdir()]
        assert left == [str(lives.pid)]
    assert list(tmp_path.iterdir()) == [], "the next throttle must not take old numbers for workers"
    files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert f"/proc/{lives.pid}/schedstat" not in files
    assert [state(lives) == "T" for _ in range(20) if time.sleep(0.005) is None] == [False] * 20
    lives.kill()
    lives.communicate()
    ended.stdout.close()


def test_who_ends_before_the_throttle_has_seen_it_is_forgotten(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    register = tmp_path / "register"
    register.mkdir()
    (register / str(gone.pid)).touch()
    with CpuThrottle(0.05, register):
        deadline = time.monotonic() + 10
        while list(register.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(register.iterdir()) == []
