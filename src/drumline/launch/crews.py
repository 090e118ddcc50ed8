"""`Crews`: the agents of many runs, some on this host, some on simulated nodes.

Runs that are compared alternate, so both kinds of agents stay: torch is imported once for all runs
of this host, and once on each node as long as the nodes are the same.
"""

from __future__ import annotations

import contextlib
from typing import Self

from drumline.launch.agents import Agents
from drumline.spec.run_spec import RunSpec


class Crews:
    """Agents for one run after the other; leaving the context ends all of them."""

    def __init__(self) -> None:
        self._here = Agents()
        self._on_nodes = Agents()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._here)
        self._stack.enter_context(self._on_nodes)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, spec: RunSpec) -> Agents:
        """Return the agents that are to run this."""
        return self._on_nodes if spec.node_plans else self._here
