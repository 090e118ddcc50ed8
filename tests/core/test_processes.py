"""The state of a process, as the system tells it."""

from __future__ import annotations

import os
import signal
import subprocess

from drumline.core.processes import is_stopped


def test_a_stopped_process_is_told_from_one_that_runs_or_is_gone() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            assert not is_stopped(process.pid)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert is_stopped(process.pid)
        finally:
            process.kill()
    assert not is_stopped(process.pid)
