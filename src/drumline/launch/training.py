"""Starting the ranks of a training run, and following them to its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from drumline.core.errors import RunDirError
from drumline.core.rundir import RunDir
from drumline.core.task import AgentTask
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
    with fresh_rendezvous(run, spec), _started(run, spec, agents) as ranks:
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
def _started(run: RunDir, spec: RunSpec, agents: Agents) -> Iterator[Agents | MpiRun]:
    """Start the ranks by the agents, or by mpirun where MPI is the backend; they end with this."""
    ranks: Agents | MpiRun = agents
    if spec.backend == "mpi":
        agents.end()  # the first was started before the spec was known
        ranks = MpiRun(agents.scratch)
    try:
        if isinstance(ranks, MpiRun):
            ranks.start(run, spec.workers)
        else:
            ranks.start(run, _tasks(run, spec), spec.node_plans)
        yield ranks
    finally:
        ranks.stop()


def _tasks(run: RunDir, spec: RunSpec) -> list[AgentTask]:
    return [
        AgentTask(
            run=str(run.path),
            node=node,
            nodes=spec.nodes,
            workers=spec.workers,
            restarts=spec.restarts,
            timeout_s=spec.timeout_s,
            cpu=spec.slow_nodes[node].cpu if node in spec.slow_nodes else 1.0,
        )
        for node in range(spec.nodes)
    ]
