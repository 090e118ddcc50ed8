"""`python -m drumline.agent PARENT PRELOAD`: run one node, as the task on standard input says.

The order matters: the worker server starts first and imports torch while this process does, and
both while the launcher is still reading its spec.
"""

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from drumline.core.lifeline import die_with_parent
from drumline.core.scratch import semaphore_prefix
from drumline.core.task import PRELOAD_VARIABLE, SCRATCH, AgentTask


def leave(code: int) -> NoReturn:
    """End without taking torch apart, object by object: that takes longer than the last rank."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Start the worker server, load torch elastic, then take the task."""
    die_with_parent(int(sys.argv[1]))
    # the worker server's socket goes with the launch, and so do the semaphores that torch elastic
    # shares with its workers by a name
    tempfile.tempdir = os.environ[SCRATCH]
    this = multiprocessing.current_process()
    this._config["semprefix"] = semaphore_prefix(Path(os.environ[SCRATCH]))  # type: ignore[attr-defined]
    os.environ[PRELOAD_VARIABLE] = sys.argv[2]
    multiprocessing.set_forkserver_preload(["drumline.agent.warm"])
    multiprocessing.forkserver.ensure_running()
    del os.environ[PRELOAD_VARIABLE]

    from drumline.agent.elastic import run_agent

    task = sys.stdin.readline()
    return run_agent(AgentTask.load(task)) if task else 0


if __name__ == "__main__":
    leave(main())
