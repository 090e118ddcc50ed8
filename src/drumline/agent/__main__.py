"""`python -m drumline.agent PARENT PRELOAD REPORTS STDIN`: run one node, as standard input says.

Each line there is a task. That it went well is told by a line to the file that has the number
REPORTS, and the next one is waited for; a task that failed ends this process, with its code. The
file of the number STDIN is the standard input of the ranks.

The order matters: the worker server starts first and imports torch while this process does, and
both while the launcher is still reading its spec.
"""

import atexit
import json
import os
import signal
import sys
import tempfile
import time

from drumline.agent.warm import WarmServer
from drumline.core.processes import die_with_parent, exit_at_once
from drumline.core.rundir import EventWriter
from drumline.core.task import SCRATCH, AgentTask


def main() -> int:
    """Run a node's agent: start the worker server, load torch elastic, then take the tasks."""
    parent, preload, reports, stdin = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback
    tempfile.tempdir = os.environ[SCRATCH]
    server = WarmServer(preload, int(stdin))
    try:
        import torch  # noqa: F401
    except Exception as error:  # a library that it needs may be missing, or of another version
        return _refuse(error)
    from drumline.agent.elastic import prepare_elastic, run_task

    prepare_elastic()
    while line := sys.stdin.readline():
        code = run_task(AgentTask.from_json(json.loads(line)), server)
        if code != 0:
            return code
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(int(reports), b"done\n")
    return 0


def _refuse(error: Exception) -> int:
    """Say in the events of the first task why there is no running anything here."""
    task = AgentTask.from_json(json.loads(sys.stdin.readline()))
    message = (
        f"PyTorch cannot be imported by {sys.executable}: {error}; install it there with: "
        f"pip install torch, and see what drumline doctor says"
    )
    with EventWriter(task.run_dir.node_events(task.node)) as events:
        events.write("error", message=message, time=time.time())
    return 1


if __name__ == "__main__":
    exit_code = main()
    atexit._run_exitfuncs()
    exit_at_once(exit_code)
