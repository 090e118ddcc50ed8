"""The lines that make simulated links, against literals."""

from __future__ import annotations

from drumline.core.nodes import NodePlan, address_of
from drumline.launcher.hub import (
    burst,
    link_lines,
    node_lines,
    route_lines,
    shape_lines,
    switch_lines,
)


def plan(**more) -> NodePlan:
    return NodePlan(node=2, address=address_of(2), **more)


def test_a_switch_joins_the_links():
    assert switch_lines() == [
        "link set dev lo up",
        "link add name switch type bridge",
        "link set dev switch mtu 9000 addrgenmode none up",
    ]
    assert link_lines(plan(), "/proc/7/fd/5") == [
        "link add name node2 mtu 9000 type veth peer name eth0 mtu 9000 netns /proc/7/fd/5",
        "link set dev node2 master switch gso_max_size 65536 addrgenmode none up",
    ]


def test_a_node_has_a_loopback_and_one_address():
    assert node_lines(plan(rate=10**8)) == [
        "link set dev lo up",
        "link set dev eth0 gso_max_size 18028 addrgenmode none up",
        "addr add 10.77.0.3/24 dev eth0",
    ]
    assert route_lines(plan()) == [
        "route replace 10.77.0.0/24 dev eth0 src 10.77.0.3 congctl cubic"
    ]


def test_a_free_link_is_not_shaped():
    assert shape_lines(plan(), "eth0") == []


def test_a_rate_is_a_token_bucket():
    assert shape_lines(plan(rate=10**9), "eth0") == [
        "qdisc add dev eth0 root tbf rate 1000000000bit burst 31250 limit 6250000"
    ]


def test_a_delay_is_netem():
    assert shape_lines(plan(delay_ms=2.5), "node2") == [
        "qdisc add dev node2 root handle 1: netem delay 2.5ms limit 138673"
    ]


def test_a_delay_with_a_rate_has_the_bucket_inside():
    assert shape_lines(plan(delay_ms=5, rate=10**8), "node2") == [
        "qdisc add dev node2 root handle 1: netem delay 5ms limit 1386",
        "qdisc add dev node2 parent 1:1 handle 2: tbf rate 100000000bit burst 18028 limit 2000000",
    ]


def test_the_bucket_holds_two_frames_or_a_quarter_of_a_millisecond():
    assert [burst(rate) for rate in (10**6, 10**8, 10**9, 10**10)] == [18028, 18028, 31250, 312500]
