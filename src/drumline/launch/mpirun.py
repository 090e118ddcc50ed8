"""`MpiRun`: the ranks of a run started by `mpirun`, for `backend: mpi`. It does what `Agents` does.

    drumline (this process, no torch)
      └─ mpirun                  ended by the kernel if we end (core/lifeline.py), and then
           ├─ python -m drumline.agent.mpi_rank       one for each rank; notes how its rank ended
           │    └─ rank …
           └─ …

Open MPI keeps files while it runs, in TMPDIR and for its shared memory in /dev/shm. Both are sent
to the launch's temporary folder, so that they go with the launch, or with the next one after
`kill -9`. Its ranks are told to use shared memory alone, so that they open no port; mpirun itself
opens one on every interface, for daemons on other hosts, and has no setting against that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from drumline.core.errors import UsageError
from drumline.core.events import EventWriter
from drumline.core.rundir import RunDir
from drumline.core.scratch import Scratch
from drumline.core.task import SCRATCH

_GRACE_S = 8.0
_INSTALL = "install Open MPI and mpi4py with: pip install 'drumline[mpi]'"


def refuse_without_mpi() -> None:
    """Say what is missing before anything is started.

    Raises:
        UsageError: there is no mpirun, or no mpi4py.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise UsageError(f"backend: mpi needs mpi4py, which is not installed; {_INSTALL}")
    _need_mpirun()


class MpiRun:
    """One mpirun with all ranks of a run; `stop` ends it, whatever happened."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._run: RunDir | None = None

    def start(self, run: RunDir, workers: int) -> None:
        """Start all ranks."""
        self._run = run
        with EventWriter(run.node_events(0)) as events:
            events.write("agent", node=0, pid=os.getpid(), time=time.time())
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in _keep_output
        tether = [sys.executable, "-m", "drumline.core.lifeline", str(os.getpid())]
        mpirun = [_need_mpirun(), "-n", str(workers)]
        rank = [sys.executable, "-m", "drumline.agent.mpi_rank", str(run.path)]
        self._process = subprocess.Popen(
            [*tether, *mpirun, *rank],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=mpi_environment(self.scratch.path, workers),
            start_new_session=True,
        )

    def running(self) -> bool:
        """Whether mpirun runs."""
        return None in self.exit_codes

    @property
    def exit_codes(self) -> list[int | None]:
        """Mpirun's exit code, None while it runs."""
        return [] if self._process is None else [self._process.poll()]

    def stop(self) -> None:
        """End what still runs: politely, and after a bounded wait by force."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            if process.poll() is None:
                process.terminate()
                process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._keep_output()

    def _keep_output(self) -> None:
        """Put what mpirun has printed into the run's logs, where it still has some."""
        if self._output is None or self._run is None:
            return
        self._output.seek(0)
        content = self._output.read()
        self._output.close()
        self._output = None
        if content and self._run.logs.is_dir():
            with contextlib.suppress(OSError):
                (self._run.logs / "node-0.log").write_bytes(content)


def mpi_environment(scratch: Path, workers: int) -> dict[str, str]:
    """Return the environment of mpirun: more ranks than cores allowed, nothing pinned to a core."""
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
    """Find mpirun beside this Python, where the wheel puts it, or on the PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def _need_mpirun() -> str:
    found = find_mpirun()
    if found is None:
        raise UsageError(f"backend: mpi starts its ranks by mpirun, and there is none; {_INSTALL}")
    return found
