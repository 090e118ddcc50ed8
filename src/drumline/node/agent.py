"""`JobAgent`: this node's agent and its ranks, as seen by the process that runs the job.

The agent is warmed up (it loads torch, and so does its worker server) while the nodes connect to
each other, and gets its task when they have. Nothing here blocks: the runner must keep its
heartbeat.

It runs with the edition of this package that the runner started with, R/lib-<hash>. `drumline
submit` and `drumline up` may install another one and redirect R/lib. A job keeps its own: its
agents have the same edition, and nobody removes that while the job runs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import drumline
from drumline.core.lock import FileLock
from drumline.core.rundir import RunDir
from drumline.core.scratch import Scratch
from drumline.core.task import PRELOAD, SCRATCH, AgentTask
from drumline.launch.agents import NodeAgent

WHOLE = "whole"
"""the file that ends an edition's unpacking; whoever needs the edition holds it locked"""
_PATH = "PYTHONPATH"
GRACE_S = 7.0
"""from SIGTERM to SIGKILL; agents give their workers five seconds"""
USUAL = (*PRELOAD, "torch._dynamo")
"""what an agent loads that waits for a job which nobody knows yet"""


def edition() -> Path | None:
    """Return the folder of this process's edition; None where nobody brought one: a checkout."""
    folder = Path(drumline.__file__).parents[1]
    return folder if (folder / WHOLE).exists() else None


def of_this_edition(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a process's variables, such that it has this edition whatever R/lib leads to."""
    own = edition()
    if own is None:
        return dict(variables)
    others = [path for path in (variables.get(_PATH),) if path]
    return {**variables, _PATH: os.pathsep.join([str(own), *others])}


def hold_edition() -> None:
    """Keep this process's edition on the node for as long as the process lives."""
    own = edition()
    if own is not None:
        FileLock(own / WHOLE, flags=os.O_RDONLY).acquire(shared=True)


class JobAgent:
    """One agent, its worker server and its ranks; `close` leaves nothing of them."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self._agent: NodeAgent | None = None
        self._task: AgentTask | None = None
        self._kill_at = float("inf")

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
        return self._agent is None or self._agent.exit_code is not None

    def warm_up(self, preload: tuple[str, ...], variables: Mapping[str, str]) -> None:
        """Start the agent ahead of its task."""
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # nodes without a name warn of each connection
        environment = {**quiet, **os.environ, **variables, SCRATCH: str(self.scratch.path)}
        self._agent = NodeAgent(preload, of_this_edition(environment))

    def start(self, task: AgentTask) -> None:
        """Give the agent its task."""
        assert self._agent is not None
        self._task = task
        self._agent.give(task)

    def tick(self) -> None:
        """Kill an agent that was asked to end and has not."""
        if time.monotonic() > self._kill_at and self._agent is not None and not self.ended:
            self._agent.signal(signal.SIGKILL)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End the agent: SIGTERM, then SIGKILL after the grace period; without ranks at once."""
        if self._agent is not None and self._kill_at == float("inf"):
            self._kill_at = time.monotonic()
            if self._has_ranks():  # one that waits for other agents does not react to SIGTERM
                self._kill_at += grace_s
                self._agent.terminate()

    def close(self) -> None:
        """Kill what is left, and keep what the agent printed."""
        if self._agent is not None:
            self._agent.kill()
            if self._task is not None:
                logs = RunDir(Path(self._task.run)).logs
                self._agent.keep_output(logs / f"node-{self._task.node}.log")
            self._agent.close()
        self.scratch.remove()

    def _has_ranks(self) -> bool:
        if self._task is None:
            return False
        run, first = RunDir(Path(self._task.run)), self._task.node * self._task.workers
        return any(run.rank_log(first + local).exists() for local in range(self._task.workers))
