"""This node's agent in a job: the task that it is given, its process, and how its ranks ended.

A `JobAgent` is warmed up (it loads torch, and so does its worker server) while the nodes connect to
each other, and gets its task when they have. Nothing here blocks: the runner must keep its
heartbeat.

It runs with the edition of this package that the runner started with, R/lib-<hash>, whatever R/lib
leads to by then. A job holds its edition, so that nobody removes that while the job runs.

Ranks write their errors into the run directory of their own node. The leader gets them as exit
reports and writes them into its own, so that `drumline.launcher.outcome` finds the first failing
rank among all.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import drumline
from drumline.core.errors import DrumlineError, SpecError, UsageError
from drumline.core.json_lines import Record
from drumline.core.lock import FileLock
from drumline.core.nodes import NODES
from drumline.core.rundir import Event, EventWriter, RunDir, read_events
from drumline.core.scratch import Scratch
from drumline.core.task import MODULE, PRELOAD, SCRATCH, AgentTask
from drumline.launcher import agents
from drumline.launcher.outcome import worker_exits
from drumline.launcher.preflight import find_module, guess_preloads
from drumline.node.job import Job, JobFolder

WHOLE = "whole"
"""the file that ends an edition's unpacking; whoever needs the edition holds it locked"""
_PATH = "PYTHONPATH"
GRACE_S = 7.0
"""from SIGTERM to SIGKILL; agents give their workers five seconds"""
USUAL = (*PRELOAD, "torch._dynamo")
"""what an agent loads that waits for a job which nobody knows yet"""
_REPORTED = frozenset({"start", "error", "agent", "worker_exit", "stopped"})
ExitReports = dict[str, list[Event]]
"""by file: `rank-3` or `node-1`"""


@dataclass(frozen=True, kw_only=True)
class Terms(Record):
    """What the leader settles for all nodes of a job."""

    workers: int
    timeout_s: float
    restarts: int
    spec: str = ""
    """the whole spec, as every node's run directory gets it; "" for a script"""


def settle_terms(job: Job, workers: int) -> Terms:
    """Settle a job's terms; a spec gets the cluster's nodes and workers.

    Raises:
        SpecError: the spec asks for what a cluster's nodes do not have.
    """
    if not job.spec:
        return Terms(workers=workers, timeout_s=job.timeout_s, restarts=job.restarts)
    import yaml  # a script's job needs neither, and they take a while to load

    from drumline.spec.load import dump_spec, validate_spec

    values = yaml.safe_load(job.spec) or {}
    if not isinstance(values, dict):
        raise SpecError("the spec is no mapping; write key: value lines")
    link = values.get("link")
    link_given = any(link.values()) if isinstance(link, dict) else link
    for key, given in (("slow_nodes", values.get("slow_nodes")), ("link", link_given)):
        if given:
            raise SpecError(
                f"{key} is about simulated nodes, but a cluster's nodes have the network and the "
                f"speed that they have; leave {key} out"
            )
    if (init := values.get("init", "env")) != "env":
        raise SpecError(
            f"init: {init}: ranks on a cluster's nodes share no folder, and meet at the leader by "
            f"themselves; leave init out"
        )
    if (backend := values.get("backend")) in ("mpi", "shm"):
        raise SpecError(
            f"backend: {backend} is for ranks on one machine; leave backend out, and the best one "
            f"is chosen"
        )
    spec = validate_spec({**values, "nodes": job.nodes, "workers": workers})
    return Terms(
        workers=workers, timeout_s=spec.timeout_s, restarts=spec.restarts, spec=dump_spec(spec)
    )


def build_task(job: Job, folder: JobFolder, terms: Terms) -> AgentTask:
    """Build the task for this node's agent from the job that the node runs."""
    return AgentTask(
        run=str(folder.run.path),
        node=job.node,
        nodes=job.nodes,
        workers=terms.workers,
        restarts=terms.restarts,
        timeout_s=terms.timeout_s,
        script=job.argv,
        observed=job.observed,
        folder=str(folder.work),
        variables=variables_for(job, terms.workers),
    )


def preloads_for(job: Job) -> tuple[str, ...]:
    """List what a job's workers will load, in the job's folder; a UsageError without its script."""
    if not job.argv:
        return PRELOAD
    if job.argv[0] == MODULE:
        if len(job.argv) < 2:
            raise UsageError("-m needs a module's name, as for python -m")
        return (*PRELOAD, *guess_preloads(find_module(job.argv[1])))
    if not Path(job.argv[0]).is_file():
        raise UsageError(
            f"there is no script {job.argv[0]} in the folder that was synced; give its path from "
            f"there, and see that .gitignore and .drumlineignore do not leave it out"
        )
    return (*PRELOAD, *guess_preloads(Path(job.argv[0])))


def variables_for(job: Job, workers: int) -> dict[str, str]:
    """Return the variables that a job's ranks get in addition to the node's environment."""
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    nodes = {NODES: ",".join(job.addresses)} if job.nodes > 1 else {}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), **nodes}


def _edition() -> Path | None:
    """Return the folder of this process's edition; None where nobody brought one: a checkout."""
    folder = Path(drumline.__file__).parents[1]
    return folder if (folder / WHOLE).exists() else None


def of_this_edition(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a node process's variables such that it loads this version of the package (R/lib)."""
    own = _edition()
    if own is None:
        return dict(variables)
    paths = filter(None, [str(own), variables.get(_PATH)])
    return {**variables, _PATH: os.pathsep.join(paths)}


def hold_edition() -> None:
    """Keep the node from removing this version of the package (R/lib) while this process lives."""
    own = _edition()
    if own is not None:
        FileLock(own / WHOLE, flags=os.O_RDONLY).acquire(shared=True)


class JobAgent:
    """One agent, its worker server and its ranks; `close` leaves nothing of them."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self._agent: agents.NodeAgent | None = None
        self._task: AgentTask | None = None
        self._kill_at = math.inf

    @property
    def warm(self) -> bool:
        """Whether the agent was started."""
        return self._agent is not None

    @property
    def exit_code(self) -> int | None:
        """How the agent's task ended; None while it goes on, or has not started."""
        return None if self._agent is None else self._agent.exit_code

    @property
    def ended(self) -> bool:
        """Whether there is no agent, or none any more, or it has done its task."""
        return not self.warm or self.exit_code is not None

    def warm_up(self, preload: tuple[str, ...], variables: Mapping[str, str]) -> None:
        """Start the agent ahead of its task."""
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # nodes without a name warn of each connection
        environment = {**quiet, **os.environ, **variables, SCRATCH: str(self.scratch.path)}
        self._agent = agents.NodeAgent(preload, of_this_edition(environment))

    def start(self, task: AgentTask) -> None:
        """Give the agent its task."""
        assert self._agent is not None
        self._task = task
        self._agent.give(task.run_dir, task)

    def tick(self) -> None:
        """Kill an agent that was asked to end and has not."""
        if time.monotonic() > self._kill_at and self._agent is not None and not self.ended:
            self._agent.kill_all()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End the agent: SIGTERM, then SIGKILL after the grace period; without ranks at once."""
        if self._agent is not None and self._kill_at == math.inf:
            self._kill_at = time.monotonic()
            if self._has_ranks():  # one that waits for other agents does not react to SIGTERM
                self._kill_at += grace_s
                self._agent.process.terminate()

    def close(self) -> None:
        """Kill what is left, and keep what the agent printed."""
        if self._agent is not None:
            self._agent.kill_and_wait()
            self._agent.close()
        self.scratch.remove()

    def read_reports(self) -> ExitReports:
        """Read the exit reports of its ranks; none where it was given no task."""
        return {} if self._task is None else read_reports(self._task, self.scratch.path)

    def _has_ranks(self) -> bool:
        if self._task is None:
            return False
        run, first = self._task.run_dir, self._task.node * self._task.workers
        return any(run.rank_log(first + local).exists() for local in range(self._task.workers))


def read_reports(task: AgentTask, fallback_events: Path) -> ExitReports:
    """Read the exit reports of a job's ranks on this node.

    `fallback_events`: where ranks left errors that they could not write to the run directory.
    """
    first = task.node * task.workers
    names = [f"rank-{rank}" for rank in range(first, first + task.workers)]
    reports: ExitReports = {}
    for name in (*names, f"node-{task.node}"):
        files = (folder / f"{name}.jsonl" for folder in (task.run_dir.events, fallback_events))
        events = [event for file in files for event in read_events(file)]
        reports[name] = [event for event in events if event["event"] in _REPORTED]
    return reports


def write_reports(run: RunDir, reports: ExitReports, *, ahead_s: float) -> None:
    """Write another node's exit reports into the leader's run directory, on the leader's clock."""
    for name, events in reports.items():
        kind, _, number = name.partition("-")
        if kind in ("rank", "node") and number.isdecimal():
            with EventWriter(run.events / f"{name}.jsonl") as writer:
                for event in events:
                    fields = {key: value for key, value in event.items() if key != "event"}
                    if "time" in fields:
                        fields["time"] -= ahead_s
                    writer.write(event["event"], **fields)


def exit_code_of(run: RunDir, error: DrumlineError, nodes: int) -> int:
    """Return a job's exit code: that of the rank that failed on a node, 128 + n for a signal n."""
    for event in worker_exits(run, nodes):
        if event["rank"] == error.fields.get("rank") and event["exit_code"]:
            code = int(event["exit_code"])
            return code if code > 0 else 128 - code
    return error.exit_code
