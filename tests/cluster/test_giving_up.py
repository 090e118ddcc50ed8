"""`down` of machines of one's own, of which one does not answer any more."""

from __future__ import annotations

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.down import take_down
from drumline.cluster.life.up import write_spec
from drumline.cluster.providers import build_provider
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import Origin, Pin, cluster_key, make_key_pair, plain_key, write_pins
from drumline.core.errors import HostError, UsageError


def quiet(*_: str) -> None:
    pass


def test_a_machine_that_does_not_answer_can_be_given_up(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path / "own"))
    hosts = []
    for node in range(2):
        one = servers.start(node)
        hosts.append(
            {
                "host": "127.0.0.1",
                "user": one.machine.user,
                "port": one.machine.port,
                "key_file": str(cluster_key(servers.home)),
                "host_key": one.host_key.with_suffix(".pub").read_text(),
            }
        )
    spec = ClusterSpec.model_validate(
        {"name": "own", "provider": "ssh", "nodes": 2, "ssh": {"hosts": hosts}}
    )
    home = ClusterHome.of("own")
    machines = build_provider(spec, home).create(quiet)
    write_spec(home, spec)
    home.note(machines=[machine.to_json() for machine in machines])
    folders = [one.home / "drumline" for one in servers.all]
    assert all(folder.is_dir() for folder in folders)
    # Somebody else answers at worker1's address
    pin = Pin(key=plain_key(make_key_pair("").public), origin=Origin.GIVEN)
    write_pins(home, 1, [pin])

    with pytest.raises(HostError, match=r"worker1 .*stays; run drumline down again.*--forget"):
        take_down(spec, home, quiet)
    assert [folder.exists() for folder in folders] == [False, True], "all others are seen to"
    assert home.spec_file.exists()
    with pytest.raises(UsageError, match=r"worker7 is no machine; there is worker0 \(127"):
        take_down(spec, home, quiet, give_up=["worker7"])
    with pytest.raises(UsageError, match=r"127\.0\.0\.1 is not one machine"):
        take_down(spec, home, quiet, give_up=["127.0.0.1"])
    with pytest.raises(HostError, match=r"worker1 .*--forget"):
        take_down(spec, home, quiet, give_up=["worker0"])

    receipt = take_down(spec, home, quiet, give_up=["worker1"])
    assert [one.identity for one in receipt.left] == [f"{machines[1].identity}:~/drumline"]
    assert receipt.removed == ()
    assert "what is on worker1" in receipt.notes[0]
    assert "rm -rf ~/drumline" in receipt.notes[0]
    assert folders[1].is_dir()
    assert not home.spec_file.exists()


def test_machines_that_cost_are_never_given_up(tmp_path):
    spec = ClusterSpec(name="lab", provider="twin")
    with pytest.raises(UsageError, match="--forget is about machines of your own"):
        take_down(spec, ClusterHome(tmp_path / "lab"), quiet, give_up=["worker0"])
