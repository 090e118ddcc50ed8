"""The agents of a run: one process per node, started together and ended together.

Several runs may follow each other. Agents and their worker servers stay for the next one, which
then starts without loading torch; unless a run has failed or was interrupted, or the next one's
agents would be started on other nodes, with other modules, variables or in another folder.

    drumline (this process, no torch)
      └─ agent of node k          python -m drumline.agent, a session of its own: Ctrl-C reaches us
           └─ worker server       has imported torch
                ├─ rank …         forked from the server
                └─ rank …

The first agent may start before it is known what to do (`warm_up`): importing torch takes longer
than reading a spec, so both happen at once. How an agent gets its tasks: `agent.py`.

Each process asks the kernel to end it with its parent, so that even `kill -9` of any of them leaves
nothing running below it. Several nodes are simulated ones: each agent starts inside its node, and
the network (`network.py`) stays and ends with the agents.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Self

from drumline.core.errors import WorkerError
from drumline.core.nodes import NodePlan
from drumline.core.processes import deferred_signals
from drumline.core.scratch import Scratch
from drumline.core.task import PRELOAD, SCRATCH, AgentTask
from drumline.launch.agent import Agent
from drumline.launch.manifest import note_network
from drumline.launch.network import Network
from drumline.launch.session import end_all

if TYPE_CHECKING:
    from drumline.core.rundir import RunDir

_LAST_WORDS_S = 1.5  # ranks look for a second which nodes they still reach


class Agents:
    """The agents of all nodes; leaving the context ends them, whatever happened."""

    def __init__(self) -> None:
        self._agents: list[Agent] = []
        self._run: RunDir | None = None
        self._plans: tuple[NodePlan, ...] = ()
        self._network: Network | None = None
        self._failed_at: float | None = None
        self.scratch = Scratch()
        """for what the agents need while they run, and for ranks' errors that fit nowhere else"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self.scratch.remove()

    def warm_up(self) -> None:
        """Start the first agent ahead of its task, with what every training run preloads."""
        self._spawn(PRELOAD, self._environment())

    def start(self, run: RunDir, tasks: list[AgentTask], plans: tuple[NodePlan, ...] = ()) -> None:
        """Give every agent its task; those that do not run yet are started.

        Args:
            run: the run.
            tasks: one for each agent, in node order.
            plans: the simulated nodes that they run on, where there are several.
        """
        if plans != self._plans or not self._would_be(tasks[0]):
            self.end()
        if plans and self._network is None:
            self._network = Network(plans, trains=not any(task.script for task in tasks))
            self._plans = plans
        if self._network is not None:
            note_network(run, self._network.describe())
        environment = self._environment(tasks[0])
        self._run = run
        for task in tasks:
            if task.node == len(self._agents):
                self._spawn(task.preload, environment)
            self._agents[task.node].give(task)

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
        """The exit code of each agent's task, None while it goes on."""
        return [agent.exit_code for agent in self._agents]

    def stop(self) -> None:
        """End the run, and keep what the agents have printed; read `exit_codes` before.

        Agents stay for the next run where the tasks of all went well.
        """
        if any(code != 0 for code in self.exit_codes):
            self.end()
        self._keep_output()

    def end(self) -> None:
        """End the run and all agents."""
        end_all(self._agents)
        if self._network is not None:
            self._network.close()
            self._network = None
        self._plans = ()
        self._keep_output()
        for agent in self._agents:
            agent.close()
        self._agents.clear()
        self._failed_at = None

    def _keep_output(self) -> None:
        if self._run is not None:
            for node, agent in enumerate(self._agents):
                agent.keep_output(self._run.logs / f"node-{node}.log")
        self._run = None

    def _would_be(self, task: AgentTask) -> bool:
        """Whether all that run would be the same, started here and now for this task."""
        environment = self._environment(task)
        return self._network_holds() and all(
            agent.would_be(task.preload, environment) for agent in self._agents
        )

    def _network_holds(self) -> bool:
        return self._network is None or self._network.holds()

    def _environment(self, task: AgentTask | None = None) -> dict[str, str]:
        """Return the variables of an agent; ranks that train share out the cores themselves."""
        environment = {**os.environ, SCRATCH: str(self.scratch.path)}
        if self._network is not None:
            environment |= self._network.environment
        if task is not None and task.script:
            threads = max(1, (os.cpu_count() or 1) // task.workers)
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        return environment

    def _spawn(self, preload: tuple[str, ...], environment: dict[str, str]) -> None:
        enter = () if self._network is None else self._network.enter(len(self._agents))
        with deferred_signals():  # one that runs and is not in the list would not be ended
            self._agents.append(Agent(preload, environment, enter))
