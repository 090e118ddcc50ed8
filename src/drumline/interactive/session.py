"""The agents that a Python session keeps, so that its second launch starts at once.

They live as long as the process that started them. The kernel ends them with the *thread* that
started them, so only the main thread's are kept: cells of a notebook run there. A launch in another
thread has agents of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Iterator

from drumline.launcher.agents import AgentPool, Agents


@contextlib.contextmanager
def session_agents(nodes: int) -> Iterator[Agents]:
    """Give the agents for a launch on so many nodes; warm ones, where the session has any."""
    if threading.current_thread() is threading.main_thread():
        yield _kept_agents(os.getpid()).of(nodes)
        return
    with Agents() as agents:
        yield agents


@functools.cache
def _kept_agents(owner: int) -> AgentPool:
    """Make the agents of this process, which end with it; a fork of it makes its own."""
    pool = AgentPool()

    def close() -> None:
        if os.getpid() == owner:
            pool.close()

    atexit.register(close)
    return pool
