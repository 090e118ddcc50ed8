"""torch elastic, set up for one node: warm workers, a rendezvous of our own, short waits."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.multiprocessing import ProcessContext

from drumline.agent.rendezvous import BACKEND, build_rendezvous
from drumline.agent.worker import enter_task, run_worker
from drumline.core.processes import is_stopped
from drumline.core.rundir import EventWriter
from drumline.core.task import SCRATCH, AgentTask

_SHUTDOWN_S = 5  # from SIGTERM to SIGKILL for a worker (a variable: older torch has no argument)


def prepare_elastic() -> None:
    """Set torch elastic up in an agent, for all tasks of this process."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.WARNING)
    _log_tracebacks_at_once()
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_S))
    _bound_patience()
    rendezvous_handler_registry.register(BACKEND, build_rendezvous)


def run_task(task: AgentTask) -> int:
    """Run an agent's task: the workers of one node, to their end; returns an exit code."""
    enter_task(task)
    with EventWriter(task.run_dir.node_events(task.node)) as events, _borrowed_signals():
        events.write("agent", node=task.node, pid=os.getpid(), time=time.time())
        events.flush()
        try:
            with throttled_workers(task) as register, tempfile.TemporaryDirectory() as logs:
                elastic_launch(_configure(task, logs), run_worker)(task, register)
        except ChildFailedError as error:
            for rank, failure in error.failures.items():
                code = failure.exitcode
                events.write("worker_exit", rank=rank, exit_code=code, time=time.time())
            return 1
        except SignalException:
            events.write("stopped", time=time.time())
            return 1
    return 0


def _bound_patience() -> None:
    """Apply the bound where one worker has failed, too: torch gives the others 30 s there.

    One that is deep in a C library does not react to SIGTERM at all.
    """
    join = getattr(ProcessContext, "_join_procs_with_timeout", None)

    def bounded(self: ProcessContext, timeout: float) -> None:
        assert join is not None
        join(self, min(timeout, _SHUTDOWN_S))

    if join is not None:  # not every version of torch has it
        setattr(ProcessContext, join.__name__, bounded)


def _log_tracebacks_at_once() -> None:
    """Write tracebacks out before torch's formatter does: it loads its compiler first, for seconds.

    They are in what it logs of a worker that failed, so every failed run would take that longer.
    """

    def write_out(record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return True

    for name in ("torch", "torch.distributed"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(write_out)


@contextlib.contextmanager
def _borrowed_signals() -> Iterator[None]:
    """Put the signals back that torch elastic takes over: they end who waits for a task at once.

    Not after a failure: then this process ends.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def throttled_workers(task: AgentTask) -> Iterator[str]:
    """Slow the workers of an agent by stopping them, or kill those that somebody else stops.

    They are killed where others get time to end: they cannot use it. Gives the folder where workers
    sign in that are slowed; "" where they run freely.
    """
    if task.cpu < 1:
        from drumline.agent.cpu_throttle import CpuThrottle

        with CpuThrottle(task.cpu, Path(os.environ[SCRATCH]) / f"node-{task.node}") as throttle:
            yield str(throttle.register)
        return
    ways = ((ProcessContext, "_join_procs_with_timeout"), (MultiprocessContext, "_close"))
    ends = [(kind, name, getattr(kind, name)) for kind, name in ways if hasattr(kind, name)]
    for kind, name, end in ends:
        setattr(kind, name, _after_killing_stopped(end))
    yield ""
    for kind, name, end in ends:
        setattr(kind, name, end)


def _after_killing_stopped(end: Callable[..., None]) -> Callable[..., None]:
    def ended(self: ProcessContext | MultiprocessContext, *args: Any, **kwargs: Any) -> None:
        workers = self._pc if isinstance(self, MultiprocessContext) else self
        for process in () if workers is None else workers.processes:
            if process.is_alive() and is_stopped(process.pid):
                process.kill()
        end(self, *args, **kwargs)

    return ended


def _configure(task: AgentTask, logs: str) -> LaunchConfig:
    run = task.run_dir
    return LaunchConfig(
        min_nodes=task.nodes,
        max_nodes=task.nodes,
        nproc_per_node=task.workers,
        run_id=run.path.name,
        role="worker",
        rdzv_backend=BACKEND,
        rdzv_endpoint=str(run.rendezvous / "agents"),
        rdzv_configs={"timeout": task.timeout_s, "node": task.node, "restarts": task.restarts},
        max_restarts=task.restarts,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )
