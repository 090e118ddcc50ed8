"""`MpiRun`: the ranks of a run started by `mpirun`, for `backend: mpi`. It does what `Agents` does.

    drumline (this process, no torch)
      └─ mpirun                  ended by the kernel if we end (core/processes.py), and then
           ├─ python -m drumline.agent.worker       one for each rank; notes how its rank ended
           │    └─ rank …
           └─ …

Open MPI keeps files while it runs, in TMPDIR and for its shared memory in /dev/shm. Both are sent
to the launch's temporary folder, so that they go with the launch, or with the next one after
`kill -9`. Its ranks are told to use shared memory alone, so that they open no port; mpirun itself
opens one on every interface, for daemons on other hosts, and has no setting against that.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from pathlib import Path

from drumline.core.errors import UsageError
from drumline.core.nodes import NodePlan
from drumline.core.processes import deferred_signals
from drumline.core.rundir import EventWriter, RunDir, read_events
from drumline.core.scratch import Scratch
from drumline.core.task import SCRATCH, AgentTask
from drumline.launcher.agents import SessionProcess, end_all

# "prterun noticed that process rank 1 with PID 4711 on node here exited on signal 9 (Killed)."
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
_INSTALL = "install Open MPI and mpi4py with: pip install 'drumline[mpi]'"


def require_mpirun() -> str:
    """Find the mpirun to launch ranks by; raises UsageError if it or mpi4py is missing."""
    if importlib.util.find_spec("mpi4py") is None:
        raise UsageError(f"backend: mpi needs mpi4py, which is not installed; {_INSTALL}")
    found = find_mpirun()
    if found is None:
        raise UsageError(f"backend: mpi starts its ranks by mpirun, and there is none; {_INSTALL}")
    return found


class MpiRun:
    """One mpirun with all ranks of a run; `stop` ends it, whatever happened."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._mpirun: SessionProcess | None = None
        self._run: RunDir | None = None

    def start(self, run: RunDir, task: AgentTask, _: tuple[NodePlan, ...] = ()) -> None:
        """Start all ranks of a run's task; they are on this host."""
        with EventWriter(run.node_events(0)) as events:
            events.write("agent", node=0, pid=os.getpid(), time=time.time())
        tether = [sys.executable, "-m", "drumline.core.processes", str(os.getpid())]
        mpirun = [require_mpirun(), "-n", str(task.workers)]
        rank = [sys.executable, "-m", "drumline.agent.worker", str(run.path), *task.script]
        environment = mpi_environment(self._scratch.path, task.workers)
        self._run = run
        with deferred_signals():
            self._mpirun = SessionProcess([*tether, *mpirun, *rank], environment)
        self._mpirun.log = run.node_log(0)
        self._mpirun.end_input()

    def running(self) -> bool:
        """Whether mpirun runs."""
        return None in self.exit_codes

    @property
    def exit_codes(self) -> list[int | None]:
        """Mpirun's exit code, None while it runs."""
        return [] if self._mpirun is None else [self._mpirun.process.poll()]

    def stop(self) -> None:
        """End all ranks, and keep what mpirun has printed; read `exit_codes` before."""
        if self._mpirun is not None and self._run is not None:
            end_all([self._mpirun])
            self._mpirun.close()
            self._mpirun = None
            _note_killed_ranks(self._run)


def _note_killed_ranks(run: RunDir) -> None:
    """Note which ranks mpirun saw killed, where the process above the rank could not.

    That process (`agent/worker.py`) is what mpirun has started as the rank. Where it is killed
    itself, the rank goes with it, and only mpirun's own output tells which one it was.
    """
    try:
        log = run.node_log(0).read_text(errors="replace")
    except OSError:
        return
    said = " ".join(log.split())  # it breaks its lines anywhere
    noted = {e["rank"] for e in read_events(run.node_events(0)) if e["event"] == "worker_exit"}
    killed = {int(rank): int(number) for rank, number in _KILLED.findall(said)}
    with EventWriter(run.node_events(0)) as events:
        for rank in killed.keys() - noted:
            events.write("worker_exit", rank=rank, exit_code=-killed[rank], time=time.time())


def mpi_environment(scratch: Path, workers: int) -> dict[str, str]:
    """Return the environment to launch mpirun in: more ranks than cores allowed, none pinned."""
    settings = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^tcp",
        "OMPI_MCA_btl_sm_backing_directory": str(scratch),
        "OMPI_MCA_btl_vader_backing_directory": str(scratch),  # the same, in Open MPI 4
        "OMPI_MCA_mpi_yield_when_idle": "1",  # a rank computes while its other thread waits
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",  # these two, in Open MPI 4
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)),
    }
    if os.geteuid() == 0:  # Open MPI asks root to say it twice
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    own = {SCRATCH: str(scratch), "TMPDIR": str(scratch)}
    return {**settings, **os.environ, **own}  # what the user has set stays


def find_mpirun() -> str | None:
    """Find the mpirun to launch ranks by: beside this Python, where its wheel is, or on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")
