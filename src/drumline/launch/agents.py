"""The agents of a run: one process per node, started together and ended together.

    drumline (this process, no torch)
      └─ agent of node k          python -m drumline.agent, a session of its own: Ctrl-C reaches us
           └─ worker server       has imported torch
                ├─ rank …         forked from the server
                └─ rank …

Each process asks the kernel to end it with its parent, so that even `kill -9` of any of them leaves
nothing running below it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from drumline.core.rundir import RunDir
from drumline.core.task import LAST_WORDS, AgentTask

_GRACE_S = 8.0  # the agents give workers five seconds of their own


class Agents:
    """Start the agents of all nodes; leaving the context ends them, whatever happened."""

    def __init__(self, run: RunDir, tasks: list[AgentTask]) -> None:
        self._run = run
        self._tasks = tasks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._last_words = tempfile.TemporaryDirectory(prefix="drumline-")

    @property
    def last_words(self) -> Path:
        """Where ranks leave errors that they cannot write to the run directory."""
        return Path(self._last_words.name)

    def __enter__(self) -> Self:
        try:
            for task in self._tasks:
                self._processes.append(self._start(task))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._last_words.cleanup()

    def running(self) -> bool:
        """Whether the run goes on: until all agents have ended, or one has failed."""
        codes = [process.poll() for process in self._processes]
        return None in codes and not any(codes)

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each agent, None while it runs."""
        return [process.poll() for process in self._processes]

    def stop(self) -> None:
        """End what still runs: politely, and after a bounded wait by force."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            _kill_session(process)

    def _start(self, task: AgentTask) -> subprocess.Popen[bytes]:
        log = self._run.logs / f"node-{task.node}.log"
        environment = {**os.environ, LAST_WORDS: self._last_words.name}
        cores = os.cpu_count() or 1
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // task.workers)))
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "drumline.agent", task.dump()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of an agent and of everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
