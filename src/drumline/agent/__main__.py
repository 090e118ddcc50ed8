"""`python -m drumline.agent TASK`: run one node of a run.

The order matters: the worker server starts first and imports torch while this process does.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import sys

from drumline.core.lifeline import die_with_parent
from drumline.core.task import PRELOAD_VARIABLE, AgentTask


def main() -> int:
    """Start the worker server, then the elastic agent."""
    die_with_parent()
    task = AgentTask.load(sys.argv[1])
    os.environ[PRELOAD_VARIABLE] = ",".join(task.preload)
    multiprocessing.set_forkserver_preload(["drumline.agent.warm"])
    multiprocessing.forkserver.ensure_running()
    del os.environ[PRELOAD_VARIABLE]

    from drumline.agent.elastic import run_agent

    return run_agent(task)


if __name__ == "__main__":
    sys.exit(main())
