"""Starting the ranks of a run, and following those that train to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from drumline.core.errors import RunDirError
from drumline.core.nodes import NodePlan
from drumline.core.rundir import RunDir
from drumline.core.task import AgentTask
from drumline.launch.agents import Agents
from drumline.launch.mpirun import MpiRun
from drumline.launch.outcome import Outcome
from drumline.launch.preflight import fresh_rendezvous
from drumline.spec.run_spec import RunSpec

Show = AbstractContextManager[Callable[[], None]]

_POLL_S = 0.1


def follow_training(run: RunDir, spec: RunSpec, agents: Agents, shown: Show) -> None:
    """Start the ranks of a run and block until all have ended.

    The run has the spec already. `agents` and `shown` are as for `run_ranks`.

    Raises:
        DrumlineError: what went wrong first, told by rank.
    """
    task = AgentTask(
        run=str(run.path), workers=spec.workers, timeout_s=spec.timeout_s, restarts=spec.restarts
    )
    by_mpi = spec.backend == "mpi"
    with fresh_rendezvous(run, spec):
        outcome = run_ranks(task, agents, shown, plans=spec.node_plans, by_mpi=by_mpi)
    if not run.manifest_file.exists():
        raise RunDirError(f"{run.path} was removed while it trained; start the run again")
    outcome.check()


def run_ranks(
    task: AgentTask,
    agents: Agents,
    shown: Show,
    *,
    plans: tuple[NodePlan, ...] = (),
    by_mpi: bool = False,
) -> Outcome:
    """Start ranks by the agents, or by mpirun where MPI is the backend, and block until they end.

    Args:
        task: the first node's; where its run directory is removed meanwhile, the ranks are ended.
        agents: start the ranks, unless mpirun does.
        shown: entered when they have started, left when the last has ended; what it gives is
            called a few times a second meanwhile.
        plans: the simulated nodes; none: all workers are on this host.
        by_mpi: whether mpirun starts them.

    Raises:
        WorkerError: the network of simulated nodes went away.
    """
    run, started = task.run_dir, time.time()
    ranks: Agents | MpiRun = agents
    if by_mpi:
        agents.end()  # the first was started before the spec was known
        ranks = MpiRun(agents.scratch)
    try:
        ranks.start(task, plans)
        with shown as show:
            while ranks.running() and run.manifest_file.exists():
                show()
                time.sleep(_POLL_S)
        agents.check_network()
        return Outcome(
            run=run,
            world_size=task.workers * max(1, len(plans)),
            exit_codes=ranks.exit_codes,
            last_words=agents.scratch.path,
            since=started,
        )
    finally:
        ranks.stop()
