"""Starting a probe: ranks that look at communication itself, and the files that they leave."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drumline.core.errors import RunDirError, WorkerError
from drumline.core.rundir import RunDir
from drumline.core.task import MODULE, PRELOAD, AgentTask
from drumline.launch.agents import Agents
from drumline.launch.manifest import build_manifest
from drumline.launch.outcome import check_outcome

_POLL_S = 0.05
_TIMEOUT_S = 60.0


@contextlib.contextmanager
def probed(
    module: str, request: Mapping[str, Any], *, ranks: int, out: Path | None
) -> Iterator[list[dict[str, Any]]]:
    """Run a module of `drumline.probe` on so many ranks, and give what each of them answered.

    Args:
        module: its full name.
        request: what it finds in `probe.json`.
        ranks: how many; all of this host.
        out: the run directory to keep; None: a temporary one.

    Raises:
        DrumlineError: what went wrong first, told by rank.
    """
    with Agents() as agents:
        run = RunDir.create("probe", root=agents.scratch.path, exact=out)
        run.write_json("manifest.json", {**build_manifest(sys.argv), "script": [module]})
        run.write_json("probe.json", dict(request))
        task = AgentTask(
            run=str(run.path),
            node=0,
            nodes=1,
            workers=ranks,
            restarts=0,
            timeout_s=_TIMEOUT_S,
            script=(MODULE, module, str(run.path)),
            preload=(*PRELOAD, module),
        )
        agents.start(run, [task])
        while agents.running():
            time.sleep(_POLL_S)
        codes = agents.exit_codes
        agents.stop()
        try:
            check_outcome(run, world_size=ranks, exit_codes=codes, last_words=agents.scratch.path)
        except WorkerError as error:
            if out is None:  # what the message points to goes with this context
                error.message += "; give --out DIR to keep the logs"
            raise
        shutil.rmtree(run.rendezvous, ignore_errors=True)
        yield [_read_answer(run, rank) for rank in range(ranks)]


def _read_answer(run: RunDir, rank: int) -> dict[str, Any]:
    answer = run.read_json(f"answer-{rank}.json")
    if answer is None:
        raise RunDirError(f"rank {rank} left no answer in {run.path}")
    return answer
