"""Launches: the same training job started by drumline, or by torchrun from a script in `rivals`.

Each is a fresh process with everything below it, ended with all of it after a bounded time. What
comes back are times of the monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

BATCH = 128  # samples per step over all ranks together
TIMEOUT_S = 90.0
RIVALS = Path(__file__).parent / "rivals"
_BIN = Path(sys.executable).parent
_GRACE_S = 10.0  # a launcher may use it to end its workers
_TAIL_CHARACTERS = 3000


class LaunchError(Exception):
    """A process that was to be measured failed, or took too long; the message has its output."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one launch of the job came to, as rank 0 saw it. All times in ns."""

    started: int
    """right before the command was started"""
    first_step_end: int
    between_steps: list[int]
    """from each step to the next, whatever happens between them included"""


def launch_drumline(strategy: str, *, workers: int, steps: int) -> Launch:
    """Run `drumline train` and read the times out of its run directory."""
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as folder:
        run = Path(folder) / "run"
        command = [
            *(str(_BIN / "drumline"), "train", "--out", str(run)),
            *("model=cnn", "data=mnist-mini", f"data.batch={BATCH}", f"strategy.kind={strategy}"),
            *("optimizer=sgd", "optimizer.lr=0.01", "optimizer.momentum=0.5"),
            *(f"workers={workers}", "threads=1", f"max_steps={steps}", "evaluate=false"),
        ]
        started = run_bounded(command, timeout_s=TIMEOUT_S, cwd=Path(folder))
        lines = (run / "events" / "rank-0.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "step"]
    starts = [event["t"] for event in events]
    return Launch(
        started=started,
        first_step_end=starts[0] + events[0]["total"],
        between_steps=_differences(starts),
    )


def launch_torchrun(script: str, *options: str, workers: int, steps: int) -> Launch:
    """Run a script of `rivals` under torchrun and read the times that it has logged."""
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as folder:
        log = Path(folder) / "ends.json"
        command = [
            *(str(_BIN / "torchrun"), f"--nproc-per-node={workers}", f"--master-port={_port()}"),
            *(str(RIVALS / script), f"--data={_mnist_mini()}", f"--times={log}"),
            *(f"--steps={steps}", f"--batch={BATCH}", *options),
        ]
        started = run_bounded(command, timeout_s=TIMEOUT_S, cwd=Path(folder))
        ends = json.loads(log.read_text())
    return Launch(started=started, first_step_end=ends[0], between_steps=_differences(ends))


def _differences(times: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(times)]


def _mnist_mini() -> Path:
    found = find_spec("drumline")
    if found is None or found.origin is None:
        raise LaunchError("drumline is not installed here; run: pip install -e .")
    return Path(found.origin).parent / "data" / "files" / "mnist-mini"


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_bounded(
    command: Sequence[str], *, timeout_s: float, cwd: Path, env: Mapping[str, str] = os.environ
) -> int:
    """Run a command to its end with one CPU thread per process; returns when it started (ns).

    If the command fails, takes longer than `timeout_s`, or this process is interrupted, everything
    that it has started ends with it.

    Raises:
        LaunchError: it failed or took too long.
    """
    environment = {**env, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NO_COLOR": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody compiles the sources at each start
    with tempfile.TemporaryFile() as output:
        started = time.monotonic_ns()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        what = None
        try:
            code = process.wait(timeout_s)
            what = f"exit code {code}" if code != 0 else None
        except subprocess.TimeoutExpired:
            what = f"not done after {timeout_s:g} s"
        finally:
            if process.returncode != 0:
                _end_tree(process)
        if what is not None:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-_TAIL_CHARACTERS:]
            raise LaunchError(f"{shlex.join(command)}: {what}\n{tail}")
    return started


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process with its group and its descendants: launchers give workers own sessions."""
    below = _descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid, born in below.items():
        if _parent_and_birth(pid)[1:] == [born]:  # not a number that was given away again
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> dict[int, str]:
    """Find the processes below `pid`, each with the time of its start."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    alive = {each: _parent_and_birth(each) for each in pids}
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        parents = {each for each, known in alive.items() if known and int(known[0]) in parents}
        found |= {each: alive[each][1] for each in parents}
    return found


def _parent_and_birth(pid: int) -> list[str]:
    """Return the parent and the start time of a process; an empty list if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [fields[1], fields[19]]
