"""The simulated network itself, without ranks: who reaches whom, how fast, and what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing

import pytest

from drumline.core.errors import CommError
from drumline.core.nodes import NODES, NodePlan, address_of
from drumline.launcher.hub import _FORGET as FORGET
from drumline.launcher.network import Network, find_namespace_method, missing_tools
from namespaces import need_namespaces, own_namespaces

RATE = 20_000_000
SENT = 1_500_000
# receives all there is, and says how long it took from the first byte to the last
RECEIVE = """
import socket, time
with socket.create_server(("10.77.0.1", 5555)) as server:
    print("ready", flush=True)
    with server.accept()[0] as peer:
        first = None
        while peer.recv(1 << 16):
            first = first or time.monotonic()
        print(time.monotonic() - first)
"""
SEND = f"""
import socket
with socket.create_connection(("10.77.0.1", 5555)) as peer:
    peer.sendall(bytes({SENT}))
"""
REACH = """
from drumline.comm.lost_peers import unreachable_nodes
print(unreachable_nodes(0.5))
"""


def plans(count: int, **more) -> tuple[NodePlan, ...]:
    return tuple(NodePlan(node=k, address=address_of(k), **more) for k in range(count))


def on(network: Network, node: int, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*network.enter(node), *command],
        env={**os.environ, **network.environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_nodes_reach_each_other_at_the_links_rate_and_nobody_else():
    need_namespaces()
    before = own_namespaces()
    with closing(Network(plans(3, rate=RATE))) as network:
        assert network.environment[NODES] == "10.77.0.1,10.77.0.2,10.77.0.3"
        receiver = subprocess.Popen(
            [*network.enter(0), sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout.readline() == "ready\n"
        assert on(network, 1, sys.executable, "-c", SEND).returncode == 0
        took = float(receiver.communicate(timeout=20)[0])
        counted = on(network, 1, "cat", "/proc/net/dev").stdout.split("eth0:")[1].split()[8]
        assert int(counted) >= SENT, "all of it went over the link"
        assert took >= 0.9 * (SENT - 40_000) * 8 / RATE, "no faster than the link"
        route = on(network, 2, "ip", "route").stdout.split("\n")
        assert len(route) == 2, "the nodes' network, and no way out"
        assert route[0].startswith("10.77.0.0/24 dev eth0")
        hub = str(network.describe()["hub"])
        cut = ["nsenter", "-t", hub, "--net", "ip", "link", "set", "node1", "down"]
        if os.geteuid() == 0:
            subprocess.run(cut, check=True)
            assert on(network, 0, sys.executable, "-c", REACH).stdout == "[1]\n"
            assert on(network, 1, sys.executable, "-c", REACH).stdout == "[0, 2]\n"
    assert own_namespaces() <= before


def test_what_tcp_learned_of_a_link_is_forgotten():
    need_namespaces()
    ours = FORGET.read_text()
    with closing(Network(plans(2))) as network:
        said = [on(network, node, "cat", str(FORGET)).stdout.strip() for node in range(2)]
    assert FORGET.read_text() == ours, "the machine's own network stays as it is"
    wanted = "1" if os.access(FORGET, os.W_OK) else ours.strip()  # a container may keep it as it is
    assert said == [wanted, wanted]


def test_the_network_is_gone_with_its_hub():
    need_namespaces()
    before = own_namespaces()
    with closing(Network(plans(2))) as network:
        assert network.holds()
        assert len(own_namespaces() - before) == 3, "two nodes and the switch"
        os.kill(network.describe()["hub"], 9)
        deadline = time.monotonic() + 5
        while network.holds() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not network.holds()
        assert own_namespaces() <= before


def test_a_delay_is_refused_where_the_kernel_has_no_netem():
    need_namespaces()
    way = find_namespace_method()
    words = "tc qdisc add dev lo root netem delay 1ms"
    has_netem = subprocess.run([*way.make, *words.split()], capture_output=True).returncode == 0
    if not has_netem:
        for trains in (True, False):
            with pytest.raises(CommError, match="needs netem, which this kernel does not") as said:
                Network(plans(2, delay_ms=5.0), trains=trains)
            assert ("slow_ranks.1.delay_ms=5" in said.value.message) == trains
        return
    connect = "import socket, time\nt = time.monotonic()\n"
    connect += "socket.socket().connect_ex(('10.77.0.2', 9))\nprint(time.monotonic() - t)"
    with closing(Network(plans(2, delay_ms=10.0, rate=RATE))) as network:
        assert float(on(network, 0, sys.executable, "-c", connect).stdout) >= 0.04


def test_a_missing_command_is_named_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing_tools() == ["ip", "tc", "nsenter", "unshare"]
    with pytest.raises(CommError, match="apt-get install iproute2 util-linux"):
        find_namespace_method()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop its rights")
def test_where_nothing_is_allowed_the_way_out_is_told():
    if missing := missing_tools():
        pytest.skip(f"no {', '.join(missing)} here; install iproute2")
    words = "from drumline.launcher.network import find_namespace_method; find_namespace_method()"
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", words]
    answer = subprocess.run(without, capture_output=True, text=True, timeout=30, check=False)
    told = answer.stderr.splitlines()[-1]
    assert "simulated nodes need network namespaces, which this machine refuses" in told
    assert "allow user namespaces" in told
    assert told.endswith("(nodes=1 workers=N)")
