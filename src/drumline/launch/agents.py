"""The agents of a run: one process per node, started together and ended together.

    drumline (this process, no torch)
      └─ agent of node k          python -m drumline.agent, a session of its own: Ctrl-C reaches us
           └─ worker server       has imported torch
                ├─ rank …         forked from the server
                └─ rank …

The first agent may start before it is known what to do (`warm_up`): importing torch takes longer
than reading a spec, so both happen at once. An agent reads its task from its standard input.

Each process asks the kernel to end it with its parent, so that even `kill -9` of any of them leaves
nothing running below it. Several nodes are simulated ones: each agent starts inside its node, and
the network (`network.py`) ends with the agents.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Self

from drumline.core.deferral import deferred_signals
from drumline.core.errors import WorkerError
from drumline.core.nodes import NodePlan
from drumline.core.scratch import Scratch
from drumline.core.task import PRELOAD, SCRATCH, AgentTask
from drumline.launch.manifest import note_network
from drumline.launch.network import Network
from drumline.launch.session import Session, end_all

if TYPE_CHECKING:
    from drumline.core.rundir import RunDir

_LAST_WORDS_S = 1.5  # ranks look for a second which nodes they still reach


class Agents:
    """The agents of all nodes; leaving the context ends them, whatever happened."""

    def __init__(self) -> None:
        self._agents: list[Session] = []
        self._run: RunDir | None = None
        self._network: Network | None = None
        self._failed_at: float | None = None
        self.scratch = Scratch()
        """for what the agents need while they run, and for ranks' errors that fit nowhere else"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.scratch.remove()

    def warm_up(self) -> None:
        """Start the first agent ahead of its task, with what every training run preloads."""
        self._spawn(PRELOAD)

    def start(self, run: RunDir, tasks: list[AgentTask], plans: tuple[NodePlan, ...] = ()) -> None:
        """Give every agent its task; those that do not run yet are started.

        Args:
            run: the run.
            tasks: one for each agent, in node order.
            plans: the simulated nodes to make first, where there are several.
        """
        if plans:
            self.stop()  # one that was started ahead is outside of the nodes
            self._network = Network(plans, trains=not any(task.script for task in tasks))
            note_network(run, self._network.describe())
        self._run = run
        for task in tasks:
            if task.node == len(self._agents):
                self._spawn(task.preload, threads=max(1, (os.cpu_count() or 1) // task.workers))
            self._agents[task.node].tell(task.dump() + "\n")

    def running(self) -> bool:
        """Whether the run goes on: until all agents have ended, or one has failed.

        Where ranks of one node have failed, those of others get a moment to say what they saw.
        """
        codes = self.exit_codes
        if None not in codes or not self._network_holds() or any((code or 0) < 0 for code in codes):
            return False
        if any(codes) and self._failed_at is None:
            self._failed_at = time.monotonic()
        return self._failed_at is None or time.monotonic() < self._failed_at + _LAST_WORDS_S

    def check_network(self) -> None:
        """Tell if the network of simulated nodes went away.

        Raises:
            WorkerError: the process that holds it was ended by somebody.
        """
        if not self._network_holds():
            raise WorkerError(
                "the process that holds the simulated network has ended, and all links with it; "
                "nothing is left behind: start the run again"
            )

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each agent, None while it runs."""
        return [agent.exit_code for agent in self._agents]

    def stop(self) -> None:
        """End all agents, and keep what they have printed; read `exit_codes` before."""
        end_all(self._agents)
        if self._network is not None:
            self._network.close()
            self._network = None
        if self._run is not None:
            for node, agent in enumerate(self._agents):
                agent.keep_output(self._run.logs / f"node-{node}.log")
        self._agents.clear()
        self._failed_at = None

    def _network_holds(self) -> bool:
        return self._network is None or self._network.holds()

    def _spawn(self, preload: tuple[str, ...], threads: int | None = None) -> None:
        environment = {**os.environ, SCRATCH: str(self.scratch.path)}
        enter: tuple[str, ...] = ()
        if self._network is not None:
            environment |= self._network.environment
            enter = self._network.enter(len(self._agents))
        if threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        command = [*enter, sys.executable, "-m", "drumline.agent"]
        with deferred_signals():  # one that runs and is not in the list would not be ended
            session = Session([*command, str(os.getpid()), ",".join(preload)], environment)
            self._agents.append(session)
