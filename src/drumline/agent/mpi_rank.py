"""`python -m drumline.agent.mpi_rank RUNDIR [SCRIPT…]`: what mpirun starts, once for each rank.

It forks the rank, before torch is loaded, and waits for it: somebody must note how a rank ended
that was killed and cannot tell. When mpirun ends, so do both.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from drumline.core.errors import CommError
from drumline.core.events import EventWriter
from drumline.core.processes import die_with_parent
from drumline.core.rundir import RunDir

_AS_TORCHRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def main() -> int:
    """Fork the rank, and return its exit code."""
    die_with_parent()
    run = RunDir(Path(sys.argv[1]))
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        raise CommError("this mpirun is not Open MPI's; pip install 'drumline[mpi]' brings that")
    os.environ.update({name: os.environ[theirs] for name, theirs in _AS_TORCHRUN.items()})
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)  # before torch, which takes a while to load
        from drumline.agent.entry import run_rank

        run_rank(str(run.path), "", *sys.argv[2:])
        return 0
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        rank = int(os.environ["RANK"])
        with EventWriter(run.node_events(0)) as events:
            events.write("worker_exit", rank=rank, exit_code=code, time=time.time())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
