"""torch elastic, set up for one node: warm workers, a rendezvous of our own, short waits.

Its own `c10d` rendezvous opens its store on every interface, lets nodes come and go, and starts
with a random pause. Here the launcher knows the nodes beforehand, so they meet around one store
that the first one serves (`FixedRendezvous`), and a round is simple:

    1. node 0 opens a fresh store for the workers and says where     "round/R/port"
    2. each agent counts itself in                                   "round/R/nodes", "round/R/N"
    3. and waits for the last one                                    "round/R/full"
    4. in the end node 0, whose store it is, is the last to leave    "left/N"

When a node's workers fail, its agent comes back for round R+1; the others see one node waiting and
restart their workers too.

torch elastic starts each rank as a command; `WarmStarter` stands where it makes the process, and
asks the worker server for one. All else is as under torchrun: the variables of a rank, what ends a
group, and when it is started again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from drumline.agent.cpu_throttle import CpuThrottle
from drumline.agent.warm import WarmProcess, WarmServer
from drumline.comm.store import announced_store, rendezvous_host, serve_store
from drumline.core.formatting import listed
from drumline.core.nodes import NODES
from drumline.core.processes import is_stopped
from drumline.core.rundir import EventKind, EventWriter
from drumline.core.task import LONG_TIMEOUT_S, SCRATCH, AgentTask

BACKEND = "drumline"
_SHUTDOWN_S = 5.0  # from SIGTERM to SIGKILL for a worker; deep in a C library it does not react
_LEAVE_S = 3.0


def prepare_elastic() -> None:
    """Set torch elastic up in an agent, for all tasks of this process."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.WARNING)
    _log_tracebacks_at_once()
    rendezvous_handler_registry.register(BACKEND, build_rendezvous)


def run_task(task: AgentTask, server: WarmServer) -> int:
    """Run an agent's task: the workers of one node, to their end; returns an exit code."""
    if NODES in task.variables:  # who started this agent ahead did not know them
        os.environ[NODES] = task.variables[NODES]
    with EventWriter(task.run_dir.node_events(task.node)) as events, _borrowed_signals():
        events.write("agent", node=task.node, pid=os.getpid(), time=time.time())
        events.flush()
        try:
            with _throttle(task) as register, tempfile.TemporaryDirectory() as logs:
                starter = WarmStarter(server, task, register, events)
                with starter.installed():
                    elastic_launch(_configure(task, logs), sys.executable)()
        except ChildFailedError:
            starter.note_exits("worker_exit")
            return 1
        except SignalException:
            events.write("stopped", time=time.time())
            return 1
        finally:
            server.end()
    return 0


class WarmStarter:
    """Starts the ranks of a task for torch elastic, each a `WarmHandler`, attempt after attempt."""

    def __init__(
        self, server: WarmServer, task: AgentTask, register: str, events: EventWriter
    ) -> None:
        self._server = server
        self._task = task
        self._register = register
        self._events = events
        self._started: dict[int, WarmHandler] = {}
        """by rank, of this attempt"""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be what torch elastic starts processes by."""
        name = "get_subprocess_handler"
        usual = getattr(api, name)
        setattr(api, name, self._start)
        try:
            yield
        finally:
            setattr(api, name, usual)

    def _start(self, *, env: Mapping[str, str], local_rank_id: int, **_: object) -> WarmHandler:
        """Start one rank, as `get_subprocess_handler` does."""
        if local_rank_id == 0 and self._started:
            self.note_exits("restart", attempt=int(env["TORCHELASTIC_RESTART_COUNT"]))
            self._events.flush()
            self._server.end()
        variables = {**os.environ, **env, **self._task.variables}
        process = self._server.start(
            Path(os.environ[SCRATCH]) / f"ended-{self._task.node}-{local_rank_id}",
            task=self._task.to_json(),
            environment=variables,
            register=self._register,
        )
        handler = WarmHandler(
            process, local_rank_id, own=not self._task.script, throttled=bool(self._register)
        )
        self._started[int(variables["RANK"])] = handler
        return handler

    def note_exits(self, kind: EventKind, **fields: object) -> None:
        """Write an event for each rank of the last attempt that has failed by itself."""
        for rank, handler in self._started.items():
            code = handler.proc.returncode
            if code and not handler.was_closed:
                self._events.write(kind, rank=rank, exit_code=code, time=time.time(), **fields)
        self._started.clear()


class WarmHandler:
    """One rank's process, as torch elastic's `SubprocessHandler` has it.

    `own` ranks train by our code, which has nothing to do at Ctrl-C: they get SIGTERM.
    """

    def __init__(
        self, process: WarmProcess, local_rank: int, *, own: bool, throttled: bool
    ) -> None:
        self.proc = process
        self.local_rank_id = local_rank
        self.was_closed = False
        self._own = own
        self._throttled = throttled

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """End it, at once where somebody has stopped it: it could not use the time to end."""
        self.was_closed = True
        self.proc.bound_waits(_SHUTDOWN_S)
        if death_sig is None or (self._own and death_sig == signal.SIGINT):
            death_sig = signal.SIGTERM
        stopped = not self._throttled and is_stopped(self.proc.pid)
        self.proc.send_signal(signal.SIGKILL if stopped else death_sig)


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
def _throttle(task: AgentTask) -> Iterator[str]:
    """Slow the workers of an agent; gives the folder where they sign in, "" if they run freely."""
    if task.cpu == 1:
        yield ""
        return
    with CpuThrottle(task.cpu, Path(os.environ[SCRATCH]) / f"node-{task.node}") as throttle:
        yield str(throttle.register)


def _configure(task: AgentTask, logs: str) -> LaunchConfig:
    run = task.run_dir
    return LaunchConfig(
        min_nodes=task.nodes,
        max_nodes=task.nodes,
        nproc_per_node=task.workers,
        run_id=run.path.name,
        role="default",
        rdzv_backend=BACKEND,
        rdzv_endpoint=str(run.rendezvous / "agents"),
        rdzv_configs={"timeout": task.timeout_s, "node": task.node, "restarts": task.restarts},
        max_restarts=task.restarts,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )


@dataclass
class FixedRendezvous(RendezvousHandler):
    """Bring a known number of nodes together, round after round."""

    store: TCPStore
    host: str
    run_id: str
    node: int
    nodes: int
    timeout_s: float
    """how long to wait for the others; in the first round they may still be loading torch"""
    restarts: bool
    """whether there may be another round, of several nodes"""
    rounds: int = 0
    closed: bool = False
    workers_store: TCPStore | None = None
    """what workers find each other by; new each round: they write the same keys again"""

    @property
    def use_agent_store(self) -> bool:
        """Workers find a store that this process serves; none of them opens one."""
        return True

    def get_backend(self) -> str:
        """Name this kind of rendezvous."""
        return BACKEND

    def get_run_id(self) -> str:
        """Name the run."""
        return self.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round; blocks until all nodes have."""
        prefix = f"round/{self.rounds}"
        full, port = f"{prefix}/full", f"{prefix}/port"
        if self.node == 0:  # (1)
            self.workers_store = serve_store(self.host, 0, self.timeout_s)
            self.store.set(port, str(self.workers_store.port))
        self.store.set(f"{prefix}/{self.node}", "1")
        if self.store.add(f"{prefix}/nodes", 1) == self.nodes:  # (2)
            self.store.set(full, "1")
        within_s = max(self.timeout_s, LONG_TIMEOUT_S) if self.rounds == 0 else self.timeout_s
        try:
            self.store.wait([full], timedelta(seconds=within_s))  # (3)
        except RuntimeError:
            late = [n for n in range(self.nodes) if not self.store.check([f"{prefix}/{n}"])]
            nodes = f"node{'' if len(late) == 1 else 's'} {listed(late)}"
            raise RendezvousTimeoutError(
                f"{nodes} of {self.nodes} did not come within {within_s:g} s"
            ) from None
        info = RendezvousInfo(
            PrefixStore(prefix, self.store),
            self.node,
            self.nodes,
            RendezvousStoreInfo(self.host, int(self.store.get(port))),
        )
        self.rounds += 1
        return info

    def num_nodes_waiting(self) -> int:
        """Count the nodes that have gone ahead to the next round.

        Where there is no next round nobody is asked: over a link that was cut, the answer would
        never come, and this process would not see its own workers end.
        """
        return self.store.add(f"round/{self.rounds}/nodes", 0) if self.restarts else 0

    def is_closed(self) -> bool:
        """Whether this rendezvous is over."""
        return self.closed

    def set_closed(self) -> None:
        """End it."""
        self.closed = True

    def shutdown(self) -> bool:
        """Leave; after a run that went well, node 0 waits a moment until the others have left (4).

        The store ends with this object, and who is still in torch elastic's exit barrier by then
        logs an error. torch calls this in a `finally`: an exception on its way says that the run
        has failed, and then nobody waits for anybody.
        """
        self.closed = True
        if sys.exception() is None:
            with contextlib.suppress(RuntimeError):  # a node was lost, or its link cut
                if self.node != 0:
                    self.store.set(f"left/{self.node}", "1")
                elif others := [f"left/{node}" for node in range(1, self.nodes)]:
                    self.store.wait(others, timedelta(seconds=_LEAVE_S))
        return True


def build_rendezvous(params: RendezvousParameters) -> RendezvousHandler:
    """Build an agent's rendezvous, as torch elastic asks for it by the name of `BACKEND`."""
    timeout_s, node = float(params.get("timeout", 300)), int(params.get("node", 0))
    long_s = max(timeout_s, LONG_TIMEOUT_S)
    return FixedRendezvous(
        store=announced_store(node, Path(params.endpoint), long_s),
        host=rendezvous_host(),
        run_id=params.run_id,
        node=node,
        nodes=params.max_nodes,
        timeout_s=timeout_s,
        restarts=params.max_nodes > 1 and int(params.get("restarts", 0)) > 0,
    )
