"""Starting the ranks of a run, and following those that train to its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from drumline.core.errors import RunDirError
from drumline.core.nodes import NodePlan
from drumline.core.rundir import RunDir
from drumline.core.task import PRELOAD, AgentTask
from drumline.launch.agents import Agents
from drumline.launch.mpirun import MpiRun
from drumline.launch.outcome import check_outcome
from drumline.launch.preflight import fresh_rendezvous
from drumline.spec.run_spec import RunSpec

Show = AbstractContextManager[Callable[[], None]]

_POLL_S = 0.1


def follow_training(run: RunDir, spec: RunSpec, agents: Agents, shown: Show) -> None:
    """Start the ranks of a run and block until all have ended.

    Args:
        run: has the spec already.
        spec: the same.
        agents: start the ranks, unless mpirun does; those of one run after the other.
        shown: entered when they have started, left when the last has ended; what it gives is
            called a few times a second meanwhile.

    Raises:
        DrumlineError: what went wrong first, told by rank.
    """
    started = time.time()
    plans = spec.node_plans
    tasks = build_tasks(
        run, plans, workers=spec.workers, timeout_s=spec.timeout_s, restarts=spec.restarts
    )
    by_mpi = spec.backend == "mpi"
    with (
        fresh_rendezvous(run, spec),
        started_ranks(run, tasks, plans, agents, by_mpi=by_mpi) as ranks,
    ):
        with shown as show:
            while ranks.running() and run.spec_file.exists():
                show()
                time.sleep(_POLL_S)
        codes = ranks.exit_codes
        agents.check_network()
    if not run.spec_file.exists():
        raise RunDirError(f"{run.path} was removed while it trained; start the run again")
    check_outcome(
        run,
        world_size=spec.world_size,
        exit_codes=codes,
        last_words=agents.scratch.path,
        since=started,
    )


@contextlib.contextmanager
def started_ranks(
    run: RunDir,
    tasks: list[AgentTask],
    plans: tuple[NodePlan, ...],
    agents: Agents,
    *,
    by_mpi: bool = False,
) -> Iterator[Agents | MpiRun]:
    """Start the ranks by the agents, or by mpirun where MPI is the backend; they end with this."""
    ranks: Agents | MpiRun = agents
    if by_mpi:
        agents.end()  # the first was started before the spec was known
        ranks = MpiRun(agents.scratch)
    try:
        if isinstance(ranks, MpiRun):
            ranks.start(run, tasks[0].workers, tasks[0].script)
        else:
            ranks.start(run, tasks, plans)
        yield ranks
    finally:
        ranks.stop()


def build_tasks(
    run: RunDir,
    plans: tuple[NodePlan, ...],
    *,
    workers: int,
    timeout_s: float,
    restarts: int = 0,
    script: tuple[str, ...] = (),
    preload: tuple[str, ...] = PRELOAD,
) -> list[AgentTask]:
    """Write a task for the agent of each node: to train by the run's spec, or to run a script.

    Args:
        run: the run.
        plans: the simulated nodes; none: all workers are on this host.
        workers: ranks on each node.
        timeout_s: how long agents wait for each other.
        restarts: how often workers may be started again.
        script: a script or module with its arguments.
        preload: what worker servers import before they fork.
    """
    return [
        AgentTask(
            run=str(run.path),
            node=node,
            nodes=max(1, len(plans)),
            workers=workers,
            restarts=restarts,
            timeout_s=timeout_s,
            cpu=plans[node].cpu if plans else 1.0,
            script=script,
            preload=preload,
        )
        for node in range(max(1, len(plans)))
    ]
