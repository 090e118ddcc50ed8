"""What tests of clusters share: a folder, SSH servers to reach from it, a stand-in for EC2."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.config import socket_folder
from sshd import Servers


@pytest.fixture
def home(tmp_path) -> Iterator[ClusterHome]:
    found = ClusterHome(tmp_path / "ho me ü%h" / "lab")
    found.make()
    yield found
    shutil.rmtree(socket_folder(found))


@pytest.fixture
def servers(tmp_path, home):
    made = Servers(tmp_path / "servers", home)
    yield made
    made.end()


@pytest.fixture(scope="session")
def stand_in():
    """One server for all tests; `aws` is what a test takes."""
    from ec2_stand_in import Ec2StandIn

    with Ec2StandIn() as server:
        yield server


@pytest.fixture
def aws(stand_in, monkeypatch, tmp_path):
    """The stand-in with nothing in it, as what boto3 finds in the environment."""
    stand_in.reset()
    stand_in.pending_looks = stand_in.ending_looks = stand_in.listing_lag = 0
    for name, value in stand_in.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path / "home"))
    yield stand_in
    stand_in.on_launch.clear()
    stand_in.on_end.clear()


@pytest.fixture
def ec2_cluster(aws, tmp_path):
    """Make a provider: ec2_cluster(nodes=2, home=…, ec2={…}, session=…, **spec)."""
    from ec2_lists import IMAGE

    from drumline.cluster.home import ClusterHome
    from drumline.cluster.providers.ec2.provider import Ec2Provider
    from drumline.cluster.spec import ClusterSpec

    def make(*, home=None, ec2=None, session=None, **spec):
        wanted = {"name": "lab", "provider": "ec2", "nodes": 2, **spec}
        wanted["ec2"] = {"allow_from": "203.0.113.7/32", "ami": IMAGE, **(ec2 or {})}
        return Ec2Provider(
            ClusterSpec.model_validate(wanted),
            home or ClusterHome.of(wanted["name"]),
            session=session or aws.shared_session(),
            sleep=lambda seconds: None,
        )

    return make
