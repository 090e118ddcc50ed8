"""What a worker does first, once it is forked: train by the spec, or run a script of the user's.

The agent imports this module too, to name the function; what only workers need is imported inside.
An agent may have been started ahead of its task, and its worker server with it: then a worker has
another folder and other variables than the server that it was forked from (`enter_task`).

`python -m drumline.agent.worker RUNDIR [SCRIPT…]` is what mpirun starts for each rank. It forks
the rank, before torch is loaded, and waits for it: somebody must note how a rank ended that was
killed and cannot tell. When mpirun ends, so do both.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

from drumline.agent.cpu_throttle import sign_in
from drumline.core.errors import CommError
from drumline.core.processes import die_with_parent
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.task import MODULE, AgentTask


def enter_task(task: AgentTask) -> None:
    """Enter an agent's task in a worker: its folder and its additional environment variables."""
    os.environ.update(task.variables)
    if task.folder:
        os.chdir(task.folder)
        sys.path[0] = task.folder


def run_worker(task: AgentTask, register: str) -> None:
    """Run a worker that an agent has forked, as one rank of the agent's task."""
    enter_task(task)
    if register:  # the agent is to slow this worker
        sign_in(register)
    if "OMP_NUM_THREADS" in task.variables:  # read when torch was loaded, before it was set
        import torch

        torch.set_num_threads(int(task.variables["OMP_NUM_THREADS"]))
    _run_rank(task.run, *task.script)


def _run_rank(run_path: str, *script: str) -> None:
    """Be the rank that the environment says, of a run, whose spec it trains by without a script."""
    if script:
        _run_script(Path(run_path), script)
    else:
        from drumline.train import train_rank

        train_rank(run_path)


def _run_script(run_path: Path, script: tuple[str, ...]) -> None:
    """Run a script as `python script.py args…` would, or a module as `python -m module args…`."""
    from drumline.comm.group import pin_interface
    from drumline.comm.store import LOOPBACK
    from drumline.train.rank import rank_process

    with rank_process(RunDir(run_path), runs_script=True):
        pin_interface(os.environ.get("MASTER_ADDR", LOOPBACK))  # mpirun names none
        if script[0] == MODULE:
            sys.argv = list(script[1:])
            sys.path[0] = str(Path.cwd())
            runpy.run_module(script[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(script)
            sys.path[0] = str(Path(script[0]).resolve().parent)
            runpy.run_path(script[0], run_name="__main__")


_AS_TORCHRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def _run_mpi_rank() -> int:
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
        _run_rank(str(run.path), *sys.argv[2:])
        return 0
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        rank = int(os.environ["RANK"])
        with EventWriter(run.node_events(0)) as events:
            events.write("worker_exit", rank=rank, exit_code=code, time=time.time())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_run_mpi_rank())
