"""The observation of one rank, from before its program's first line to its end.

Under `drumline run` the launcher has made the run directory, and reads it. A rank that another
launcher has started has none (`observe`): rank 0 makes it, and tells the others where it is by a
note, as `drumline train` does there (`core/join.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import re
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore

from drumline.comm.gloo_threads import rest_before_destroying
from drumline.comm.hosts import measure_clock, this_host
from drumline.comm.meter import Footprint, count_sent_bytes
from drumline.core.join import outer_launcher
from drumline.core.manifest import build_manifest
from drumline.core.rundir import FAILURE, EventWriter, RunDir, describe_start
from drumline.core.status import STACKS_SIGNAL, StatusWriter
from drumline.observer.hooks import Hooks
from drumline.observer.recorder import Recorder

_EVERY_S = 1.0
_CLOCK_S = 60.0
_observing: list[Observation] = []
"""this process's, if it is observed: hooks in PyTorch are the process's, too"""


def observe_rank(run: RunDir, rank: int, events: EventWriter) -> None:
    """Observe this process as a rank of a run, from now to its end."""
    if _observing:
        return
    try:
        observation = Observation(run, rank, events)
        observation.start()
    except Exception as error:  # no room for its files, or a PyTorch that the hooks do not know
        said = f"{type(error).__name__}: {error}"
        print(f"drumline cannot observe this rank: {said}", file=sys.stderr)
        return
    _observing.append(observation)


def observe(name: str | None = None) -> Path | None:
    """Observe this process, which torchrun, mpirun or srun has started as one of several ranks.

    To be called before the program trains or communicates; every rank calls it. Does nothing under
    `drumline run`, which observes by itself.

    Args:
        name: of the run; if none, the script's.

    Returns:
        The run directory, or None where this process is observed already.

    Raises:
        CommError: rank 0 did not make the run directory.
    """
    if _observing:
        return None
    launcher = outer_launcher()
    rank, world_size = (0, 1) if launcher is None else (launcher.rank, launcher.world_size)
    if launcher is not None and rank != 0:
        run = launcher.wait_for_run()
    else:
        run = _make_run(name)
        if launcher is not None:
            launcher.announce(run)
            atexit.register(launcher.note.unlink, missing_ok=True)
    rest_before_destroying()
    events = EventWriter(run.rank_events(rank))
    events.write("start", **describe_start(rank, attempt=0))
    if rank == 0:
        _conclude_at_exit(run, world_size)
    observe_rank(run, rank, events)
    return run.path


def _make_run(name: str | None) -> RunDir:
    """Make the run directory of a program that we have not launched."""
    script = sys.argv[0] or "python"
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", name or Path(script).stem).lstrip("-._")
    run = RunDir.create(stem or "script", root=Path("runs"))
    run.write_json("manifest.json", {**build_manifest(sys.argv), "script": sys.argv or [script]})
    return run


def _conclude_at_exit(run: RunDir, world_size: int) -> None:
    """Leave the summary when this process ends, or how it failed."""
    lock = contextlib.ExitStack()
    lock.enter_context(run.locked())
    began, process = time.monotonic(), os.getpid()

    def conclude() -> None:
        if os.getpid() == process:
            summary = {"world_size": world_size, "time_s": time.monotonic() - began}
            error = getattr(sys, "last_value", None)  # that was not caught, and has been printed
            failure = {"type": type(error).__name__, "message": str(error)}
            with contextlib.suppress(Exception):
                if error is None:
                    run.write_json("summary.json", summary)
                else:
                    run.write_json(FAILURE, failure)
                print(f"observed: drumline show {run.word(root=Path('runs'))}", file=sys.stderr)
            lock.close()

    atexit.register(conclude)


def mark_step() -> None:
    """Mark the end of a step, in a program whose steps do not end with an optimizer's.

    Does nothing where the program is not observed.
    """
    for observation in _observing:
        observation.mark_step()


class Observation:
    """What observes a rank: hooks, a recorder, a thread that writes about once a second."""

    def __init__(self, run: RunDir, rank: int, events: EventWriter) -> None:
        self._events = events
        self.recorder = Recorder(events, StatusWriter(run.rank_status(rank)))
        self._hooks = Hooks(self.recorder)
        self._footprint = Footprint()
        self._sent = count_sent_bytes()
        self._stacks = run.rank_stacks(rank).open("a")
        self._process = os.getpid()
        self._ended = threading.Event()

    def start(self) -> None:
        """Put the hooks in place; stacks are written at a signal, even by a rank that hangs."""
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        try:
            self._hooks.__enter__()
        except Exception:
            self._hooks.close()
            self.recorder.status.remove()
            raise
        threading.Thread(target=self._write, name="drumline-observer", daemon=True).start()
        if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
            threading.Thread(target=self._note_clock, name="drumline-clock", daemon=True).start()
        atexit.register(self.end)

    def mark_step(self) -> None:
        """Note that a step ends here."""
        self._hooks.note(Recorder.mark_step)

    def _note_clock(self) -> None:
        """Note how far this host's clock is ahead of rank 0's, by the store that ranks meet at."""
        with contextlib.suppress(Exception):  # no store, or none that all of them reach
            environ = os.environ
            rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
            host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
            within = timedelta(seconds=_CLOCK_S)
            served = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=within)
            store = PrefixStore(
                f"drumline/clock/{environ.get('TORCHELASTIC_RESTART_COUNT')}", served
            )
            store.set(f"host/{rank}", this_host().clock)
            clocks = [store.get(f"host/{each}").decode() for each in range(world_size)]
            ahead = measure_clock(store, clocks, rank=rank, within_s=_CLOCK_S)
            self.recorder.write("clock", ahead_ns=ahead)

    def _write(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with contextlib.suppress(Exception):
                self.recorder.flush()

    def end(self) -> None:
        """Write out what is left; in a forked child there is nothing of it."""
        if self._ended.is_set() or os.getpid() != self._process:
            return
        self._ended.set()
        self._hooks.close()
        sent = count_sent_bytes()
        fields = {} if sent is None or self._sent is None else {"sent": sent - self._sent}
        with contextlib.suppress(Exception):
            self.recorder.close()
            step = self.recorder.steps
            peak = self._footprint.peak()
            self._events.write("end", step=step, time=time.time(), **fields, **peak)
            self._events.flush()
