"""Until when nodes live: what each `up` makes of the limits, of `extend`, and of lost nodes."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import decide_term, refuse_passed
from drumline.cluster.providers import Machine
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import ClusterError

HOUR = 3600.0


@pytest.fixture
def lab(tmp_path):
    home = ClusterHome(tmp_path / "lab")
    home.make()
    return home


def spec(**limits) -> ClusterSpec:
    return ClusterSpec(name="lab", provider="ec2", **limits)


def machines(*hours_ago: float, price_usd: float = 1.0) -> list[Machine]:
    now = time.time()
    return [
        Machine(
            node=node,
            host="h",
            address="a",
            user="u",
            identity=f"i-{node}",
            price_usd=price_usd,
            since=now - hours * HOUR,
        )
        for node, hours in enumerate(hours_ago)
    ]


def hours_left(term) -> float:
    return (term.deadline - time.time()) / HOUR


def test_limits_that_change_move_the_deadline(lab):
    nodes = machines(1, 1)
    first = decide_term(spec(max_hours=8), lab, nodes, made=nodes, former=())
    assert hours_left(first) == pytest.approx(7, abs=0.01)
    assert first.changes == ()
    lab.note(**first.to_json())
    again = decide_term(spec(max_hours=8), lab, nodes, made=(), former=())
    assert (again.deadline, again.changes) == (first.deadline, ())

    lab.note(deadline=first.deadline + 2 * HOUR)  # drumline extend 2h
    changed = spec(max_hours=4, idle_minutes=None)
    refuse_passed(changed, lab, nodes)
    term = decide_term(changed, lab, nodes, made=(), former=())
    assert term.deadline == first.deadline + 2 * HOUR - 4 * HOUR, "what extend has added stays"
    assert term.changes == ("max_hours 8 → 4", "idle_minutes 60 → none")
    lab.note(**term.to_json())
    assert decide_term(changed, lab, nodes, made=(), former=()).changes == ()

    term = decide_term(
        spec(max_hours=4, budget_usd=4, idle_minutes=9), lab, nodes, made=(), former=()
    )
    assert hours_left(term) == pytest.approx(5 - 2, abs=0.01), "4 USD pay for two hours of four"
    assert term.changes == ("budget_usd none → 4", "idle_minutes none → 9")


def test_limits_that_would_end_the_nodes_at_once_are_refused(lab):
    nodes = machines(3, 3)
    lab.note(**decide_term(spec(max_hours=8), lab, nodes, made=nodes, former=()).to_json())
    with pytest.raises(ClusterError, match=r"max_hours 8 → 2: .* have been there for 3\.0 h"):
        refuse_passed(spec(max_hours=2), lab, nodes)
    with pytest.raises(ClusterError, match=r"budget_usd none → 1: .*drumline down"):
        refuse_passed(spec(max_hours=8, budget_usd=1), lab, nodes)
    refuse_passed(spec(max_hours=8), lab, nodes)
    lab.note(deadline=time.time() - 1)  # they are gone: another `up` makes new ones
    refuse_passed(spec(max_hours=2), lab, nodes)


def test_lost_nodes_have_cost_part_of_the_budget(lab):
    """Each costs one USD an hour: two hours of two, of which one is replaced."""
    nodes = machines(2, 2)
    limits = spec(max_hours=8, budget_usd=6)
    lab.note(**decide_term(limits, lab, nodes, made=nodes, former=()).to_json())
    lab.note(deadline=time.time() + 9 * HOUR)  # drumline extend
    lost = replace(nodes[1], until=time.time() - 0.5 * HOUR)
    earlier = replace(
        machines(50)[0], until=time.time() - 40 * HOUR
    )  # of another life: all were new
    nodes = [nodes[0], replace(machines(0, 0)[1], identity="i-9")]
    term = decide_term(limits, lab, nodes, made=nodes[1:], former=[earlier, lost])
    assert hours_left(term) == pytest.approx((6 - 2 - 1.5) / 2, abs=0.01)


def test_machines_of_ones_own_have_none(lab):
    own = ClusterSpec(provider="ssh", nodes=1, ssh={"hosts": [{"host": "192.0.2.1"}]})
    assert decide_term(own, lab, machines(0), made=(), former=()).deadline is None
