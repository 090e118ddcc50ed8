"""Starting a probe: ranks that look at communication itself, and the files that they leave."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import RunDirError
from drumline.core.json_lines import Message
from drumline.core.nodes import NodePlan
from drumline.core.rundir import PROGRESS
from drumline.core.task import MODULE, PRELOAD, AgentTask
from drumline.launcher.agents import Agents
from drumline.launcher.mpirun import require_mpirun
from drumline.launcher.runs import create_script_run, launched_ranks

_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far ranks have come."""

    share: float
    now: str
    """what they do"""
    case: str = ""
    """which of several cases runs, and how many there are"""


Watch = Callable[[Progress | None], None]


def watch_part(watch: Watch, name: str, *, number: int, of: int) -> Watch:
    """Return a watch of one of several parts, which tells how far all of them have come."""

    def tell(said: Progress | None) -> None:
        share, now = (0.0, name) if said is None else (said.share, f"{name}: {said.now}")
        watch(Progress(share=(number + share) / of, now=now))

    return tell


@contextlib.contextmanager
def launched_probe(
    module: str,
    request: Message,
    *,
    ranks: int,
    out: Path | None,
    plans: tuple[NodePlan, ...] = (),
    by_mpi: bool = False,
    watch: Watch = lambda _: None,
) -> Iterator[list[Message]]:
    """Launch a module of `drumline.probe` on so many ranks, and give what each answered.

    Args:
        module: its full name.
        request: what it finds in `probe.json`.
        ranks: how many, over all nodes, equally many on each.
        out: the run directory to keep; None: a temporary one.
        plans: the simulated nodes to run on; none: this host.
        by_mpi: let mpirun start the ranks, on this host.
        watch: called again and again while they run, with what they say of their progress.

    Raises:
        DrumlineError: what went wrong first, told by rank; or there is no MPI.
    """
    if by_mpi:
        require_mpirun()
    with Agents() as agents:
        run = create_script_run("probe", [module], root=agents.scratch.path, out=out)
        run.write_json("probe.json", request)
        task = AgentTask(
            run=str(run.path),
            workers=ranks // max(1, len(plans)),
            timeout_s=_TIMEOUT_S,
            script=(MODULE, module, str(run.path)),
            preload=(*PRELOAD, module),
        )
        with launched_ranks(
            run,
            task,
            agents,
            plans=plans,
            by_mpi=by_mpi,
            kept=out is not None,  # else the logs go with this context
            timeout="timeout_s" if "timeout_s" in request else None,
        ) as polls:
            for _ in polls:
                said = run.read_json(PROGRESS)
                watch(None if said is None else Progress(**said))
        shutil.rmtree(run.rendezvous, ignore_errors=True)
        answers = []
        for rank in range(ranks):
            if (answer := run.read_json(f"answer-{rank}.json")) is None:
                raise RunDirError(f"rank {rank} has ended without an answer; run it again")
            answers.append(answer)
        yield answers
