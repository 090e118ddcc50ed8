"""Who leaves the agents' rendezvous when: node 0 serves the store, so it is the last to go."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import TCPStore

from drumline.agent import elastic
from drumline.agent.elastic import FixedRendezvous
from drumline.comm.store import LOOPBACK, serve_store


@pytest.fixture
def nodes():
    """Make the handlers of two nodes of a run, each with a connection to the store."""
    server = serve_store(LOOPBACK, 0, 20.0)
    client = TCPStore(LOOPBACK, server.port, is_master=False)
    common = {"host": LOOPBACK, "run_id": "demo-1", "nodes": 2, "timeout_s": 20.0}
    return [
        FixedRendezvous(store=store, node=node, restarts=False, **common)
        for node, store in enumerate((server, client))
    ]


def test_the_first_node_waits_until_the_others_have_left(nodes):
    first, second = nodes
    leaving = threading.Thread(target=first.shutdown)
    leaving.start()
    time.sleep(0.3)
    assert leaving.is_alive()
    second.shutdown()
    leaving.join(timeout=10)
    assert not leaving.is_alive()


def test_nobody_waits_for_long_nor_after_a_failure(nodes, monkeypatch):
    monkeypatch.setattr(elastic, "_LEAVE_S", 3600)  # longer than a test may take
    try:
        raise ValueError("the run has failed")
    except ValueError:
        nodes[0].shutdown()
    monkeypatch.setattr(elastic, "_LEAVE_S", 0.2)
    assert nodes[0].shutdown(), "a node that was lost does not keep the others"
