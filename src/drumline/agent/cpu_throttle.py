"""CPU throttling: the workers of a node get a share of the CPU time that they would have. No torch.

Control groups would do it too, but only for root and where they are set up; signals work for
everybody. A worker may compute for a moment, then it is stopped for as long as the share asks:

    share 0.5    │ computes 20 ms │ stopped 20 ms │ computes 20 ms │ stopped 20 ms │ …

What counts as computing is the time that its main thread ran or waited for a core (the kernel's
schedstat). So computing takes 1/share times as long, however many others want the cores, while
waiting for the network costs nothing extra, as on a slow machine.

A worker is never left stopped: the throttle lets go when the agent is done, and where the agent is
killed its workers are killed by the kernel, stopped or not (`core/processes.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Self

_TICK_S = 0.0025
_SHORTEST_STOP_NS = 20_000_000  # shorter ones let it win every race for a busy core
_LOOK_EVERY_S = 0.05


def sign_in(register: str) -> None:
    """Register this worker with its agent's CPU throttle, which slows it."""
    Path(register, str(os.getpid())).touch()


class CpuThrottle:
    """Slows the workers that sign in, from a thread of this process, until the context ends."""

    def __init__(self, share: float, register: Path) -> None:
        self._share = share
        self.register = register
        """the folder where workers sign in"""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu throttle", daemon=True)

    def __enter__(self) -> Self:
        self.register.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        # an agent stays for the next run: by then a number may be another process's
        shutil.rmtree(self.register, ignore_errors=True)

    def _run(self) -> None:
        workers: dict[str, _Worker] = {}
        looked = 0.0
        try:
            while not self._done.wait(_TICK_S):
                if time.monotonic() - looked > _LOOK_EVERY_S:
                    looked = time.monotonic()
                    self._find_new(workers)
                for pid, worker in list(workers.items()):
                    if not worker.tick():
                        del workers[pid]
                        (self.register / pid).unlink(missing_ok=True)
        finally:
            for worker in workers.values():
                worker.release()

    def _find_new(self, workers: dict[str, _Worker]) -> None:
        for pid in os.listdir(self.register):
            if pid not in workers:
                try:
                    workers[pid] = _Worker(int(pid), self._share)
                except OSError:  # it has ended already
                    (self.register / pid).unlink(missing_ok=True)


class _Worker:
    """One worker process: what it owes, and whether it is stopped."""

    def __init__(self, pid: int, share: float) -> None:
        self._factor = 1 / share - 1
        self._handle = os.pidfd_open(pid)  # a number may be given to another process, this not
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, self._handle)
            self._clock = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
            opened.callback(os.close, self._clock)
            self._busy_ns = self._read_busy()
            opened.pop_all()
        self._owes_ns = 0.0
        self._stopped_at: int | None = None

    def tick(self) -> bool:
        """Stop it or let it go on, whichever is due; false once it has ended."""
        try:
            if self._stopped_at is None:
                busy = self._read_busy()
                self._owes_ns += (busy - self._busy_ns) * self._factor
                self._busy_ns = busy
                if self._owes_ns >= _SHORTEST_STOP_NS:
                    signal.pidfd_send_signal(self._handle, signal.SIGSTOP)
                    self._stopped_at = time.monotonic_ns()
            elif (stopped_ns := time.monotonic_ns() - self._stopped_at) >= self._owes_ns:
                signal.pidfd_send_signal(self._handle, signal.SIGCONT)
                self._owes_ns -= stopped_ns  # a late tick is made up for
                self._stopped_at = None
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Let it run freely, if it still runs, and close its files."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGCONT)
        os.close(self._handle)
        os.close(self._clock)

    def _read_busy(self) -> int:
        """Nanoseconds that its main thread has run, or waited for a core."""
        ran, waited, _ = os.pread(self._clock, 100, 0).split()
        return int(ran) + int(waited)
