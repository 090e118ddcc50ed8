"""The receipt: each machine from its launch to its end, those that were replaced, too."""

from __future__ import annotations

import resource
import time
from datetime import UTC, datetime, timedelta

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.down import take_down
from drumline.cluster.life.receipt import bill, former_machines
from drumline.cluster.life.up import write_spec
from drumline.cluster.providers.ec2.inventory import read_end
from drumline.cluster.spec import ClusterSpec

USD = 0.526 + 0.005 + 100 * 0.08 / 730


def quiet(who: str, what: str) -> None:
    pass


def age(aws, identity: str, *, began_h: float, ended_h: float | None = None) -> None:
    """Let an instance have lived some hours ago."""
    now, one = datetime.now(UTC), aws.backend().get_instance(identity)
    one.launch_time = now - timedelta(hours=began_h)
    if ended_h is not None:
        end = now - timedelta(hours=ended_h)
        one._reason = f"User initiated ({end.strftime('%Y-%m-%d %H:%M:%S')} GMT)"


def forget_dead(aws) -> None:
    """An hour later, EC2 lists the dead no more."""
    reservations = aws.backend().reservations
    for key, reservation in list(reservations.items()):
        if reservation.instances[0].state == "terminated":
            del reservations[key]


def note(home: ClusterHome, machines) -> None:
    home.note(machines=[machine.to_json() for machine in machines])


@pytest.fixture
def lab(aws, ec2_cluster):
    """A cluster whose spec is known here, as `up` leaves it."""
    cluster, home = ec2_cluster(), ClusterHome.of("lab")
    machines = cluster.create(quiet)
    write_spec(home, cluster._spec)
    note(home, machines)
    return cluster, home, machines


def test_each_machine_is_billed_to_its_end(aws, lab):
    """worker1 was lost twice: replaced once, and then it ended itself before `down`."""
    cluster, home, first = lab
    for machine in first:
        age(aws, machine.identity, began_h=5)
    note(home, cluster.machines())
    aws.backend().terminate_instances([first[1].identity])
    age(aws, first[1].identity, began_h=5, ended_h=3)
    second = cluster.create(quiet)
    former = former_machines(home, cluster, home.read_facts().machines, second)
    age(aws, second[1].identity, began_h=2.5)
    note(home, cluster.machines())
    home.note(former=[machine.to_json() for machine in former], deadline=time.time() + 9999)
    forget_dead(aws)
    aws.backend().terminate_instances([second[1].identity])
    age(aws, second[1].identity, began_h=2.5, ended_h=1)

    receipt = take_down(cluster._spec, home, quiet)
    assert aws.left() == []
    assert [(line.node, line.identity) for line in receipt.lines] == [
        ("worker0", first[0].identity),
        ("worker1", first[1].identity),
        ("worker1", second[1].identity),
    ]
    assert [line.hours for line in receipt.lines] == pytest.approx([5, 2, 1.5], abs=0.01)
    assert receipt.usd == pytest.approx(8.5 * USD, rel=0.01)
    assert receipt.notes == ()


def test_an_end_that_nobody_knows_counts_to_the_deadline(aws, lab):
    cluster, home, machines = lab
    for machine in machines:
        age(aws, machine.identity, began_h=5)
    note(home, cluster.machines())
    home.note(deadline=time.time() - 2 * 3600)
    aws.backend().terminate_instances([machines[1].identity])
    forget_dead(aws)
    receipt = take_down(cluster._spec, home, quiet)
    assert [line.hours for line in receipt.lines] == pytest.approx([5, 3], abs=0.01)
    (note_,) = receipt.notes
    assert f"nobody knows when worker1 ({machines[1].identity}) ended" in note_


def test_nodes_of_a_zone_that_was_left_are_billed_too(aws, ec2_cluster):
    """No `up` has ever noted them: the journal has, also when EC2 lists them no more."""
    aws.refuse("RunInstances", "InsufficientInstanceCapacity", nth=2)
    cluster = ec2_cluster(ec2={"zones": ["us-east-1c", "us-east-1b"]})
    there = {machine.identity for machine in cluster.create(quiet)}
    (left,) = cluster.ended()
    assert left.node == 0
    assert left.identity not in there
    assert left.price_usd == pytest.approx(USD)
    forget_dead(aws)
    (still,) = cluster.ended()
    assert still.identity == left.identity
    assert left.since - 2 < still.since <= still.until <= time.time()
    assert bill([still], time.time() + 3600, None)[0].hours < 0.01


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("User initiated (2026-01-02 03:04:05 GMT)", 1767323045.0),
        ("Server.SpotInstanceTermination (2026-01-02 03:04:05 UTC)", 1767323045.0),
        ("User initiated shutdown", 0.0),
        ("", 0.0),
    ],
)
def test_what_ec2_says_of_an_end(reason, end):
    assert read_end({"StateTransitionReason": reason}) == end
    assert read_end({}) == 0.0


def test_a_full_disk_here_keeps_nothing_alive_there(aws, lab):
    """Nothing can be written: neither the journal, nor the lock's holder, nor the receipt."""
    cluster, home, _ = lab
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        receipt = take_down(ClusterSpec.model_validate(cluster._spec), home, quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert aws.left() == []
    assert len(receipt.lines) == 2
    assert "the receipt could not be kept: cannot write" in receipt.notes[0]
    assert not home.spec_file.exists()
