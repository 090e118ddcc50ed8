"""`Session`: a process that leads a session of its own, so that Ctrl-C reaches us alone.

What it prints goes to a file without a name, and from there into the run's logs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from drumline.core.processes import deferred_signals

_GRACE_S = 8.0  # agents give their workers five seconds


class Session:
    """A process and all that it starts."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        hand_down: tuple[int, ...] = (),
    ) -> None:
        """Start it.

        Args:
            command: what to run.
            environment: all of its variables.
            hand_down: files that it gets beside its standard ones, by their numbers.
        """
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in close
        self._kept = 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=environment,
            pass_fds=hand_down,
            start_new_session=True,
        )

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, None while it runs."""
        return self._process.poll()

    def tell(self, text: str) -> None:
        """Write to its standard input; one that has ended is found elsewhere."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def end_input(self) -> None:
        """Let it find the end of its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def keep_output(self, log: Path) -> None:
        """Put what was printed since the last time into a log, where its folder still exists."""
        file = self._output.fileno()
        # not by reading on: where we are in the file is where the process goes on writing
        content = os.pread(file, os.fstat(file).st_size - self._kept, self._kept)
        self._kept += len(content)
        if content and log.parent.is_dir():
            with contextlib.suppress(OSError):
                log.write_bytes(content)

    def ask_to_end(self) -> None:
        """Let it end by itself."""
        self._process.terminate()

    def signal(self, number: int) -> None:
        """Send a signal to it, and to everything that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kill what is left of it, and of everything that it started."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self.end_input()

    def close(self) -> None:
        """Let go of what it has printed; it has ended."""
        self._output.close()


def end_all(sessions: Sequence[Session]) -> None:
    """End what still runs: politely, and after a bounded wait, or a second Ctrl-C, by force."""
    with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        for session in sessions:
            session.ask_to_end()
        deadline = time.monotonic() + _GRACE_S
        for session in sessions:
            session.wait(max(0.0, deadline - time.monotonic()))
    with deferred_signals():
        for session in sessions:
            session.kill()
