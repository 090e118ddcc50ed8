"""How the agents of a run meet: a fixed set of nodes around one store that the first one serves.

torch elastic's own `c10d` rendezvous opens its store on every interface, lets nodes come and go,
and starts with a random pause. Here the launcher knows the nodes beforehand, so a round is simple:

    1. node 0 opens a fresh store for the workers and says where     "round/R/port"
    2. each agent counts itself in                                   "round/R/nodes", "round/R/N"
    3. and waits for the last one                                    "round/R/full"

When a node's workers fail, its agent comes back for round R+1; the others see one node waiting and
restart their workers too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError

from drumline.comm.store import announced_store, rendezvous_host, serve_store
from drumline.core.formatting import listed
from drumline.core.task import LONG_TIMEOUT_S

BACKEND = "drumline"


@dataclass
class FixedRendezvous(RendezvousHandler):
    """Bring a known number of nodes together, round after round."""

    store: TCPStore
    host: str
    run_id: str
    node: int
    nodes: int
    timeout_s: float
    """how long to wait for the others; in the first round they may still be loading torch"""
    restarts: bool
    """whether there may be another round, of several nodes"""
    rounds: int = 0
    closed: bool = False
    workers_store: TCPStore | None = None
    """what workers find each other by; new each round: they write the same keys again"""

    @property
    def use_agent_store(self) -> bool:
        """Workers find a store that this process serves; none of them opens one."""
        return True

    def get_backend(self) -> str:
        """Name this kind of rendezvous."""
        return BACKEND

    def get_run_id(self) -> str:
        """Name the run."""
        return self.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round; blocks until all nodes have."""
        here, full = self._nodes_key(self.rounds), f"round/{self.rounds}/full"
        port = f"round/{self.rounds}/port"
        if self.node == 0:  # (1)
            self.workers_store = serve_store(self.host, 0, self.timeout_s)
            self.store.set(port, str(self.workers_store.port))
        self.store.set(self._node_key(self.node), "1")
        if self.store.add(here, 1) == self.nodes:  # (2)
            self.store.set(full, "1")
        within_s = max(self.timeout_s, LONG_TIMEOUT_S) if self.rounds == 0 else self.timeout_s
        try:
            self.store.wait([full], timedelta(seconds=within_s))  # (3)
        except RuntimeError:
            late = [node for node in range(self.nodes) if not self._has_come(node)]
            nodes = f"node{'' if len(late) == 1 else 's'} {listed(late)}"
            raise RendezvousTimeoutError(
                f"{nodes} of {self.nodes} did not come within {within_s:g} s"
            ) from None
        info = RendezvousInfo(
            PrefixStore(f"round/{self.rounds}", self.store),
            self.node,
            self.nodes,
            RendezvousStoreInfo(self.host, int(self.store.get(port))),
        )
        self.rounds += 1
        return info

    def num_nodes_waiting(self) -> int:
        """Count the nodes that have gone ahead to the next round.

        Where there is no next round nobody is asked: over a link that was cut, the answer would
        never come, and this process would not see its own workers end.
        """
        return self.store.add(self._nodes_key(self.rounds), 0) if self.restarts else 0

    def is_closed(self) -> bool:
        """Whether this rendezvous is over."""
        return self.closed

    def set_closed(self) -> None:
        """End it."""
        self.closed = True

    def shutdown(self) -> bool:
        """Nothing to wait for: the store ends with this object, or with the process."""
        self.closed = True
        return True

    def _has_come(self, node: int) -> bool:
        return self.store.check([self._node_key(node)])

    def _node_key(self, node: int) -> str:
        return f"round/{self.rounds}/{node}"

    def _nodes_key(self, number: int) -> str:
        return f"round/{number}/nodes"


def register_rendezvous() -> None:
    """Register the agents' `rdzv_backend="drumline"` with torch elastic."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(params: RendezvousParameters) -> RendezvousHandler:
    timeout_s = float(params.get("timeout", 300))
    node = int(params.get("node", 0))
    patience_s = max(timeout_s, LONG_TIMEOUT_S)
    return FixedRendezvous(
        store=announced_store(node, Path(params.endpoint), patience_s),
        host=rendezvous_host(),
        run_id=params.run_id,
        node=node,
        nodes=params.max_nodes,
        timeout_s=timeout_s,
        restarts=params.max_nodes > 1 and int(params.get("restarts", 0)) > 0,
    )
