"""`python -m drumline.agent PARENT PRELOAD REPORTS`: run one node, as standard input says.

Each line there is a task. That it went well is told by a line to the file that has the number
REPORTS, and the next one is waited for; a task that failed ends this process, with its code.

The order matters: the worker server starts first and imports torch while this process does, and
both while the launcher is still reading its spec.
"""

import atexit
import json
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from pathlib import Path

from drumline.core.processes import die_with_parent, exit_at_once
from drumline.core.task import PRELOAD_VARIABLE, SCRATCH, AgentTask


def main() -> int:
    """Run a node's agent: start the worker server, load torch elastic, then take the tasks."""
    die_with_parent(int(sys.argv[1]))
    # the worker server's socket goes with the launch, and so do the semaphores that torch elastic
    # shares with its workers by a name
    tempfile.tempdir = os.environ[SCRATCH]
    this = multiprocessing.current_process()
    this._config["semprefix"] = f"/{Path(os.environ[SCRATCH]).name}"  # type: ignore[attr-defined]
    os.environ[PRELOAD_VARIABLE] = sys.argv[2]  # stays, for a server in the place of a lost one
    multiprocessing.set_forkserver_preload(["drumline.agent.warm"])
    multiprocessing.forkserver.ensure_running()

    from drumline.agent.elastic import prepare_elastic, run_task

    prepare_elastic()
    while task := sys.stdin.readline():
        code = run_task(AgentTask.from_json(json.loads(task)))
        if code != 0:
            return code
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(int(sys.argv[3]), b"done\n")
    return 0


if __name__ == "__main__":
    exit_code = main()
    atexit._run_exitfuncs()
    exit_at_once(exit_code)
