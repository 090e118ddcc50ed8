"""How the agents of a run meet: a fixed set of nodes around one store that the first one serves.

torch elastic's own `c10d` rendezvous opens its store on every interface, lets nodes come and go,
and starts with a random pause. Here the launcher knows the nodes beforehand, so a round is simple:

    1. node 0 opens a fresh store for the workers and says where     "round/R/port"
    2. each agent counts itself in                                   "round/R/nodes", "round/R/N"
    3. and waits for the last one                                    "round/R/full"
    4. in the end node 0, whose store it is, is the last to leave    "left/N"

When a node's workers fail, its agent comes back for round R+1; the others see one node waiting and
restart their workers too.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError

from drumline.comm.store import announced_store, rendezvous_host, serve_store
from drumline.core.formatting import listed
from drumline.core.task import LONG_TIMEOUT_S

BACKEND = "drumline"
_LEAVE_S = 3.0


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
        prefix = f"round/{self.rounds}"
        full, port = f"{prefix}/full", f"{prefix}/port"
        if self.node == 0:  # (1)
            self.workers_store = serve_store(self.host, 0, self.timeout_s)
            self.store.set(port, str(self.workers_store.port))
        self.store.set(f"{prefix}/{self.node}", "1")
        if self.store.add(f"{prefix}/nodes", 1) == self.nodes:  # (2)
            self.store.set(full, "1")
        within_s = max(self.timeout_s, LONG_TIMEOUT_S) if self.rounds == 0 else self.timeout_s
        try:
            self.store.wait([full], timedelta(seconds=within_s))  # (3)
        except RuntimeError:
            late = [n for n in range(self.nodes) if not self.store.check([f"{prefix}/{n}"])]
            nodes = f"node{'' if len(late) == 1 else 's'} {listed(late)}"
            raise RendezvousTimeoutError(
                f"{nodes} of {self.nodes} did not come within {within_s:g} s"
            ) from None
        info = RendezvousInfo(
            PrefixStore(prefix, self.store),
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
        return self.store.add(f"round/{self.rounds}/nodes", 0) if self.restarts else 0

    def is_closed(self) -> bool:
        """Whether this rendezvous is over."""
        return self.closed

    def set_closed(self) -> None:
        """End it."""
        self.closed = True

    def shutdown(self) -> bool:
        """Leave; after a run that went well, node 0 waits a moment until the others have left (4).

        The store ends with this object, and who is still in torch elastic's exit barrier by then
        logs an error. torch calls this in a `finally`: an exception on its way says that the run
        has failed, and then nobody waits for anybody.
        """
        self.closed = True
        if sys.exception() is None:
            with contextlib.suppress(RuntimeError):  # a node was lost, or its link cut
                if self.node != 0:
                    self.store.set(f"left/{self.node}", "1")
                elif others := [f"left/{node}" for node in range(1, self.nodes)]:
                    self.store.wait(others, timedelta(seconds=_LEAVE_S))
        return True


def build_rendezvous(params: RendezvousParameters) -> RendezvousHandler:
    """Build an agent's rendezvous, as torch elastic asks for it by the name of `BACKEND`."""
    timeout_s, node = float(params.get("timeout", 300)), int(params.get("node", 0))
    long_s = max(timeout_s, LONG_TIMEOUT_S)
    return FixedRendezvous(
        store=announced_store(node, Path(params.endpoint), long_s),
        host=rendezvous_host(),
        run_id=params.run_id,
        node=node,
        nodes=params.max_nodes,
        timeout_s=timeout_s,
        restarts=params.max_nodes > 1 and int(params.get("restarts", 0)) > 0,
    )
