"""What every provider promises, whoever's machines they are: ec2, ssh and twin, one suite."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from twins import need_twins

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Provider, build_provider
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import cluster_key
from sshd import Servers

NODES = 2
PROVIDERS = ("ec2", "ssh", "twin")


@dataclass
class Ground:
    """Where a provider makes its machines."""

    spec: ClusterSpec
    seen: Callable[[], Any]
    """everything that there is, found without the provider's help"""
    said: list[tuple[str, str]] = field(default_factory=list)

    @property
    def home(self) -> ClusterHome:
        return ClusterHome.of(self.spec.name)

    def provider(self) -> Provider:
        """A new one each time, as each command has."""
        return build_provider(self.spec, self.home)

    def say(self, who: str, what: str) -> None:
        self.said.append((who, what))


def _spec(**values: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"name": "promised", "nodes": NODES, **values})


@pytest.fixture
def ec2(aws) -> Ground:
    where = {"allow_from": "203.0.113.7/32", "subnet": aws.subnets["us-east-1a"]}
    spec = _spec(provider="ec2", ec2={"instance_type": "c5.large", **where})
    return Ground(spec, aws.left)


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path / "home"))
    keys = ClusterHome(tmp_path / "keys")
    keys.make()
    servers = Servers(tmp_path / "servers", keys)
    try:
        for node in range(NODES):
            servers.start(node)
        hosts = [
            {
                "host": "127.0.0.1",
                "user": one.machine.user,
                "port": one.machine.port,
                "key_file": str(cluster_key(keys)),
                "host_key": one.host_key.with_suffix(".pub").read_text(),
            }
            for one in servers.all
        ]
        spec = _spec(provider="ssh", ssh={"hosts": hosts})
        yield Ground(spec, lambda: [one for s in servers.all for one in s.home.iterdir()])
    finally:
        servers.end()


@pytest.fixture
def twin(tmp_path, monkeypatch):
    from drumline.cluster.providers.twin.control import find_processes

    need_twins()
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path / "home"))
    root = (tmp_path / "home").resolve()

    def seen() -> list[Any]:
        running = [one for one in find_processes() if root in one.home.parents]
        # a node's other processes come and go while it lives; these do not
        lasting = [one for one in running if one.is_first or not one.name]
        return [*lasting, *root.glob("clusters/*/twin/*")]

    ground = Ground(_spec(provider="twin"), seen)
    yield ground
    ground.provider().remove(ground.say)


@pytest.fixture(params=PROVIDERS)
def ground(request) -> Ground:
    return request.getfixturevalue(request.param)


def test_the_promises_of_a_provider(ground):
    # plan: what would be made, and nothing is
    assert ground.provider().name == ground.spec.provider
    planned = ground.provider().plan()
    assert len([one for one in planned.resources if one.identity == ""]) >= NODES
    assert (planned.exists, ground.seen()) == ((), [])
    assert planned.price_usd >= 0
    assert planned.priced
    assert ground.provider().resources() == []

    # create: machines in node order; once more, by another command: the same ones
    machines = ground.provider().create(ground.say)
    assert [machine.node for machine in machines] == list(range(NODES))
    assert len({machine.identity for machine in machines}) == NODES
    assert ground.said, "a person is told"
    there = ground.seen()
    again = ground.provider().create(ground.say)
    assert [one.identity for one in again] == [one.identity for one in machines]
    assert len(ground.seen()) == len(there)
    assert ground.provider().machines() == again

    # resources: read back, each with a name to find it by
    listed = ground.provider().resources()
    assert len(listed) >= NODES
    assert all(one.identity and one.kind and one.cluster == "promised" for one in listed)
    assert len({(one.kind, one.identity) for one in listed}) == len(listed)

    # remove: nothing is left; once more: fine
    ground.provider().remove(ground.say)
    assert ground.provider().resources() == []
    assert ground.seen() == []
    ground.provider().remove(ground.say)

    # and a cluster of that name can be made again
    if ground.spec.provider != "ssh":  # there the machines are never gone
        assert ground.provider().machines() == []
        shutil.rmtree(ground.home.path)
        new = ground.provider().create(ground.say)
        assert not {one.identity for one in new} & {one.identity for one in machines}
        ground.provider().remove(ground.say)
        assert ground.seen() == []


def test_tags_are_enough_to_remove_a_cluster(ec2, tmp_path, monkeypatch):
    """From another laptop, which has the name and nothing else."""
    ec2.provider().create(ec2.say)
    assert len(ec2.seen()) > NODES
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path / "another laptop"))
    other = ec2.provider()
    assert len([one for one in other.resources() if one.kind == "instance"]) == NODES
    other.remove(ec2.say)
    assert ec2.seen() == []
    assert other.resources() == []
