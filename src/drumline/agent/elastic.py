"""torch elastic, set up for one node: warm workers, a rendezvous of our own, short waits."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.multiprocessing import ProcessContext

from drumline.agent.brake import Brake
from drumline.agent.entry import run_rank
from drumline.agent.rendezvous import BACKEND, register_rendezvous
from drumline.core.events import EventWriter
from drumline.core.rundir import RunDir
from drumline.core.task import SCRATCH, AgentTask

_SHUTDOWN_S = 5  # from SIGTERM to SIGKILL for a worker (a variable: older torch has no argument)


def run_agent(task: AgentTask) -> int:
    """Run the workers of one node to their end; returns the exit code of this process."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.WARNING)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_S))
    _bound_patience()
    register_rendezvous()
    run = RunDir(Path(task.run))
    with EventWriter(run.node_events(task.node)) as events:
        events.write("agent", node=task.node, pid=os.getpid(), time=time.time())
        events.flush()
        try:
            with Brake(task.cpu, Path(os.environ[SCRATCH]) / f"node-{task.node}") as brake:
                launch = elastic_launch(_configure(task, run), run_rank)
                launch(task.run, brake.register, *task.script)
        except ChildFailedError as error:
            for rank, failure in error.failures.items():
                events.write(
                    "worker_exit",
                    rank=rank,
                    exit_code=failure.exitcode,
                    time=time.time(),
                )
            return 1
        except SignalException:
            events.write("stopped", time=time.time())
            return 1
    return 0


def _bound_patience() -> None:
    """Apply the bound where one worker has failed, too: torch gives the others 30 s there.

    One that is stopped, or deep in a C library, does not react to SIGTERM at all.
    """
    join = getattr(ProcessContext, "_join_procs_with_timeout", None)

    def bounded(self: ProcessContext, timeout: float) -> None:
        assert join is not None
        join(self, min(timeout, _SHUTDOWN_S))

    if join is not None:  # not every version of torch has it
        setattr(ProcessContext, join.__name__, bounded)


def _configure(task: AgentTask, run: RunDir) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=task.nodes,
        max_nodes=task.nodes,
        nproc_per_node=task.workers,
        run_id=run.path.name,
        role="worker",
        rdzv_backend=BACKEND,
        rdzv_endpoint=str(run.rendezvous / "agents"),
        rdzv_configs={
            "timeout": task.timeout_s,
            "node": task.node,
            "restarts": task.restarts,
        },
        max_restarts=task.restarts,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=os.environ[SCRATCH]),
    )
