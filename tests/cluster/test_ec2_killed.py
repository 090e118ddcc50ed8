"""The client dies at every single call; what is there can be continued, and can be removed.

A client that dies right after call k and one that dies right before call k + 1 leave the same
cloud behind. What is left is looked at after each death, and each state is tried once: continued
by `create`, and removed by somebody who has nothing but the name.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ec2_lists import IMAGE

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers.ec2.removal import reap

NODES = 2
SOURCE = Path(__file__).parents[2] / "src"


class Died(BaseException):
    """The client is no more."""


class Death:
    """Ends the client before or after its k-th call; after that it makes no other."""

    def __init__(self, session) -> None:
        self.lock = threading.Lock()
        self.session = session
        session.events.register("before-call.*.*", self._before)
        session.events.register("after-call.*.*", self._after)
        self.plan(0, "never")

    def plan(self, number: int, when: str) -> None:
        self.number, self.when, self.count, self.dead = number, when, 0, False

    def _before(self, context, **rest) -> None:
        with self.lock:
            self.count += 1
            context["call"] = self.count
            if self.when == "before" and self.count == self.number:
                self.dead = True
            if self.dead:
                raise Died

    def _after(self, context, **rest) -> None:
        with self.lock:
            if self.when == "after" and context["call"] == self.number:
                self.dead = True
            if self.dead:
                raise Died


def quiet(who: str, what: str) -> None:
    pass


@pytest.fixture
def death(aws):
    return Death(aws.session())


def state_of(aws, home: ClusterHome) -> tuple:
    """What a continuation can see: resources, rules, and what the journal says."""
    journal = home.journal.read_text() if home.journal.exists() else ""
    groups = [one for held in aws.backend().groups.values() for one in held.values()]
    return (
        tuple(sorted(identity.rpartition("-")[0] for identity in aws.left())),
        tuple(sorted(one.state + str(one.get_tags()) for one in aws.backend().all_instances())),
        tuple(len(group.ingress_rules) for group in groups if group.name != "default"),
        tuple(line.split(",")[1] for line in journal.splitlines()),
        tuple(line.split('"')[1] for line in journal.splitlines()),
    )


def deaths(calls: list[str]) -> list[tuple[int, str]]:
    """All moments: before each call, and after each that changes something."""
    reads = ("Describe", "Get")
    return [(number, "before") for number in range(1, len(calls) + 1)] + [
        (number, "after")
        for number, action in enumerate(calls, start=1)
        if not action.startswith(reads) or number == len(calls)
    ]


def check_removed_by_name_alone(aws, ec2_cluster, death, folder: Path) -> None:
    empty = ClusterHome(folder / "nowhere" / "lab")
    ec2_cluster(nodes=NODES, home=empty, session=death.session).remove(quiet)
    assert aws.left() == []
    assert not empty.path.exists()


@pytest.mark.slow
def test_every_call_of_create(aws, ec2_cluster, death, tmp_path):
    # Launches come in threads, but the first one before all others; two nodes have an order.
    def make(home: ClusterHome):
        return ec2_cluster(nodes=NODES, home=home, session=death.session)

    make(ClusterHome(tmp_path / "whole" / "lab")).create(quiet)
    calls = [call.action for call in aws.calls]
    assert calls.count("RunInstances") == NODES
    seen: set[tuple] = set()
    tried = []
    for number, when in deaths(calls):
        aws.reset()
        home = ClusterHome(tmp_path / f"{when}-{number}" / "lab")
        death.plan(number, when)
        with pytest.raises(Died):
            make(home).create(quiet)
        death.plan(0, "never")
        state = state_of(aws, home)
        if state in seen:
            continue
        seen.add(state)
        tried.append((number, when))
        left = aws.snapshot()

        machines = make(home).create(quiet)
        assert [machine.node for machine in machines] == list(range(NODES)), (number, when)
        assert len(aws.backend().all_instances()) == NODES, "no double, not even for a moment"
        assert len(aws.left()) == 3 * NODES + 3

        aws.restore(left)
        if len(seen) % 2:
            check_removed_by_name_alone(aws, ec2_cluster, death, tmp_path)
        else:
            reap(death.session, quiet, sleep=lambda seconds: None)
        assert aws.left() == [], (number, when)
    makes = [action for action in calls if not action.startswith(("Describe", "Get"))]
    assert len(makes) == 4 + NODES
    assert len(tried) >= 2 * len(makes), tried


@pytest.mark.slow
def test_every_call_of_remove(aws, ec2_cluster, death, tmp_path):
    home = ClusterHome(tmp_path / "home" / "lab")
    ec2_cluster(nodes=NODES, home=home, session=death.session).create(quiet)
    whole, kept = aws.snapshot(), tmp_path / "kept"
    shutil.copytree(home.path, kept)
    aws.calls.clear()
    ec2_cluster(nodes=NODES, home=home, session=death.session).remove(quiet)
    calls = [call.action for call in aws.calls]
    seen: set[tuple] = set()
    for number, when in deaths(calls):
        aws.restore(whole)
        shutil.rmtree(home.path)
        shutil.copytree(kept, home.path)
        death.plan(number, when)
        with pytest.raises(Died):
            ec2_cluster(nodes=NODES, home=home, session=death.session).remove(quiet)
        death.plan(0, "never")
        state = state_of(aws, home)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % 2:
            check_removed_by_name_alone(aws, ec2_cluster, death, tmp_path)
        else:
            ec2_cluster(nodes=NODES, home=home, session=death.session).remove(quiet)
        assert aws.left() == [], (number, when)
    assert len(seen) >= 8


def launches(aws) -> list[int]:
    """The calls that launch, by number."""
    return [number for number, call in enumerate(aws.calls, 1) if call.action == "RunInstances"]


@pytest.mark.parametrize("node", range(NODES))
def test_a_launch_that_nobody_lists_yet(aws, ec2_cluster, death, tmp_path, node):
    """The client dies right after it; tokens alone keep a second one away, and groups a leak."""
    cluster = ec2_cluster(nodes=NODES, session=death.session)
    cluster.create(quiet)
    number = launches(aws)[node]
    aws.reset()
    shutil.rmtree(ClusterHome.of("lab").path)
    aws.listing_lag = 9
    death.plan(number, "after")
    with pytest.raises(Died):
        cluster.create(quiet)
    death.plan(0, "never")
    assert len(aws.living()) == node + 1
    left = aws.snapshot()
    assert len(cluster.create(quiet)) == NODES
    assert len(aws.backend().all_instances()) == NODES
    aws.restore(left)
    aws.hidden = dict.fromkeys([one.id for one in aws.living()], 9)
    check_removed_by_name_alone(aws, ec2_cluster, death, tmp_path)


def test_the_zone_of_a_launch_that_nobody_knows_of_comes_first(aws, ec2_cluster, death):
    """There was no room in the first zone then; now there is, but a node is in the second."""
    cluster = ec2_cluster(nodes=NODES, session=death.session)
    cluster.create(quiet)
    number = launches(aws)[0]
    aws.reset()
    shutil.rmtree(ClusterHome.of("lab").path)
    aws.listing_lag = 9
    aws.refuse("RunInstances", "InsufficientInstanceCapacity")
    death.plan(number + 3, "after")  # it also looks twice for what the first zone has given
    with pytest.raises(Died):
        cluster.create(quiet)
    death.plan(0, "never")
    assert [one.availability_zone for one in aws.living()] == ["us-east-1b"]
    assert len(cluster.create(quiet)) == NODES
    assert {one.availability_zone for one in aws.backend().all_instances()} == {"us-east-1b"}
    assert len(aws.backend().all_instances()) == NODES


def test_up_after_a_down_that_died(aws, ec2_cluster, death, tmp_path):
    """Half of it is gone: `create` completes it again, with nodes whose tokens are fresh."""
    cluster = ec2_cluster(nodes=NODES, session=death.session)
    cluster.create(quiet)
    aws.calls.clear()
    death.plan(8, "after")
    with pytest.raises(Died):
        cluster.remove(quiet)
    death.plan(0, "never")
    assert [call.action for call in aws.calls].count("TerminateInstances") == 1
    assert aws.living() == []
    assert len(cluster.create(quiet)) == NODES
    assert len(aws.living()) == NODES


_CLIENT = """
import os, signal, sys
import boto3
from drumline.cluster.providers.ec2.provider import Ec2Provider
from drumline.cluster.home import ClusterHome
from drumline.cluster.spec import ClusterSpec

number, when, how, image = int(sys.argv[1]), *sys.argv[2:]
session, count = boto3.Session(), 0

def end():
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)

def before(**rest):
    global count
    count += 1
    if when == "before" and count == number:
        end()

def after(**rest):
    if when == "after" and count == number:
        end()

session.events.register("before-call.*.*", before)
session.events.register("after-call.*.*", after)
spec = ClusterSpec.model_validate(
    {"name": "lab", "provider": "ec2", "nodes": 2,
     "ec2": {"allow_from": "203.0.113.7/32", "ami": image}}
)
provider = Ec2Provider(spec, ClusterHome.of("lab"), session=session)
provider.create(lambda who, what: None)
"""


@pytest.mark.slow
def test_processes_that_are_killed(aws, ec2_cluster, tmp_path):
    """The same with real processes: one after another dies, and the last one gets through."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def run(number: int, when: str, how: str) -> int:
        words = [sys.executable, "-c", _CLIENT, str(number), when, how, IMAGE]
        return subprocess.run(words, env=environment, timeout=60, check=False).returncode

    ec2_cluster(home=ClusterHome(tmp_path / "probe" / "lab")).create(quiet)
    calls = [call.action for call in aws.calls]
    group, launch = calls.index("CreateSecurityGroup") + 1, calls.index("RunInstances") + 1
    aws.reset()
    assert run(group, "after", "kill") == -signal.SIGKILL
    assert len(aws.left()) == 2, "a key pair and a group"
    # The group is there now, and the pair; the calls before the launch are fewer by those two.
    assert run(launch - 2, "after", "exit") == 7
    assert len(aws.living()) == 1
    assert run(0, "never", "exit") == 0
    assert len(aws.living()) == len(aws.backend().all_instances()) == 2
    reap(aws.shared_session(), quiet, sleep=lambda seconds: None)
    assert aws.left() == []


def test_deaths_covers_every_call():
    calls = ["DescribeInstances", "ImportKeyPair", "DescribeInstances"]
    before = [(1, "before"), (2, "before"), (3, "before")]
    assert deaths(calls) == [*before, (2, "after"), (3, "after")]
