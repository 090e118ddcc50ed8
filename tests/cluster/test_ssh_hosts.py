"""Machines of one's own: claimed, used, given back as they were."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers.ssh import SshHosts
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.keys import cluster_key, find_host_keys, make_key_pair
from drumline.core.errors import ClusterError, HostError, UsageError
from sshd import alive, free_port, wait_until


@pytest.fixture
def lab(servers, tmp_path, monkeypatch):
    """Two machines, and a user who has their keys in known_hosts, and one of their own."""
    user = tmp_path / "user"
    (user / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for node in range(2):
        servers.start(node)
    lines = [
        f"[127.0.0.1]:{one.machine.port} {one.host_key.with_suffix('.pub').read_text()}"
        for one in servers.all
    ]
    (user / ".ssh" / "known_hosts").write_text("".join(lines))
    (user / ".ssh" / "id_ed25519").write_bytes(cluster_key(servers.home).read_bytes())
    (user / ".ssh" / "id_ed25519").chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-q", "-H", "-f", user / ".ssh" / "known_hosts"], capture_output=True
    )
    return user


def hosts_of(servers, **more) -> list[dict]:
    return [
        {"host": "127.0.0.1", "user": one.machine.user, "port": one.machine.port, **more}
        for one in servers.all
    ]


def provider(tmp_path, hosts, *, name="lab2", **ssh) -> SshHosts:
    spec = ClusterSpec.model_validate(
        {"name": name, "provider": "ssh", "nodes": len(hosts), "ssh": {"hosts": hosts, **ssh}}
    )
    return SshHosts(spec, ClusterHome(tmp_path / "clusters" / name), reach_s=2)


def quiet(*_):
    pass


def test_a_folder_is_claimed_used_and_removed(servers, lab, tmp_path):
    before = {one: one.read_bytes() for one in (lab / ".ssh").iterdir()}
    ours = provider(tmp_path, hosts_of(servers))
    assert len(ours.plan().resources) == 2
    assert ours.resources() == []
    machines = ours.create(quiet)
    assert ours.create(quiet) == machines == ours.machines()
    assert [one.kind for one in ours.resources()] == ["folder", "folder"]
    folders = [one.home / "drumline" for one in servers.all]

    # Another cluster does not get them, nor another laptop's cluster of the same name
    other = provider(tmp_path, hosts_of(servers), name="other")
    with pytest.raises(HostError, match=r"worker0 .* of the cluster lab2, made by .*worker1 .* of"):
        other.create(quiet)
    assert other.resources() == []
    other.remove(quiet)
    theirs = provider(tmp_path / "another laptop", hosts_of(servers))
    with pytest.raises(HostError, match=r"worker0 .* of the cluster lab2, made by .*; remove that"):
        theirs.create(quiet)
    assert theirs.resources() == []
    with pytest.raises(HostError, match=r"drumline down there, or here with --id [0-9a-f]{8}\)"):
        theirs.remove(quiet)
    assert all(folder.is_dir() for folder in folders)
    with pytest.raises(ClusterError, match=r"none of ssh\.hosts has a folder .* id 0"):
        theirs.adopt("0")

    # Nor do nodes change places, so that nobody would find the folder of the one that is gone
    ours.refuse_moved(machines)
    swapped = provider(tmp_path, hosts_of(servers)[::-1])
    with pytest.raises(HostError, match=r"worker0 .* is that of worker1 of this very cluster"):
        swapped.create(quiet)
    assert ours.create(quiet) == machines
    for hosts in (hosts_of(servers)[::-1], hosts_of(servers)[:1], hosts_of(servers, user="else")):
        with pytest.raises(
            ClusterError, match=r"worker\d of lab2 is in ~/drumline on .*drumline do"
        ):
            provider(tmp_path, hosts).refuse_moved(machines)

    # Jobs that have outlived the connection end with the cluster
    async def start() -> list[int]:
        home = ClusterHome(tmp_path / "clusters" / "lab2")
        async with Fleet.open(machines, home, timeout_s=20) as fleet:
            words = 'cd "$1"; setsid sleep 99 > /dev/null 2>&1 & echo $!'
            done = await fleet.all(
                lambda remote: remote.run(["sh", "-c", words, "sh", remote.machine.root])
            )
            return [int(one.stdout) for one in done]

    pids = asyncio.run(start())
    wait_until(lambda: len(ours.resources()) == 4, "the processes to be listed", 30)
    assert [one.kind for one in ours.resources()] == ["folder", "process"] * 2
    identity = ClusterHome(tmp_path / "clusters" / "lab2").cluster_id()
    theirs.adopt(identity)
    assert len(theirs.resources()) == 4
    ours.remove(quiet)
    assert ours.resources() == []
    assert not any(folder.exists() for folder in folders)
    assert not any(map(alive, pids))
    ours.remove(quiet)
    assert before == {one: one.read_bytes() for one in (lab / ".ssh").iterdir()}


def test_what_is_not_ours_is_never_removed(servers, lab, tmp_path):
    folder = servers.all[0].home / "drumline"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    ours = provider(tmp_path, hosts_of(servers))
    with pytest.raises(HostError, match=r"worker0 .*not Drumline's.*ssh.root"):
        ours.create(quiet)
    assert not (servers.all[1].home / "drumline").exists(), "all are claimed, or none"
    ours.remove(quiet)
    assert (folder / "thesis.tex").exists()
    for root in ("~", "/", "~/x/.."):
        with pytest.raises(HostError, match="not a folder for Drumline alone"):
            provider(tmp_path, hosts_of(servers), root=root).create(quiet)


@pytest.mark.slow
def test_hosts_that_are_not_known_or_not_there(servers, lab, tmp_path):
    pub = servers.all[0].host_key.with_suffix(".pub").read_text()
    hosts = hosts_of(servers)
    (lab / ".ssh" / "known_hosts").unlink()
    ours = provider(tmp_path, hosts)
    ports = [host["port"] for host in hosts]
    scan = r"ssh-keyscan -t ed25519 -p"
    with pytest.raises(ClusterError, match=rf"{scan} {ports[0]} 127.*{scan} {ports[1]} 127"):
        ours.create(quiet)
    assert [one.state for one in ours.resources()] == ["unknown", "unknown"], "none ends the look"
    given = provider(tmp_path, [{**hosts[0], "host_key": pub}])
    assert given.create(quiet)[0].key_file == ""
    wrong = provider(tmp_path, [{**hosts[0], "host_key": make_key_pair("").public}])
    with pytest.raises(HostError, match="impostor"):
        wrong.create(quiet)
    with pytest.raises(ClusterError, match="no public key"):
        find_host_keys(wrong._hosts[0].model_copy(update={"host_key": "nonsense"}))
    with pytest.raises(UsageError, match="twice, as worker0 and worker1"):
        provider(tmp_path, [hosts[0], hosts[0]]).create(quiet)
    with pytest.raises(ClusterError, match="cannot be read"):
        provider(tmp_path, [{**hosts[0], "host_key": pub, "key_file": "~/none"}]).create(quiet)
    gone = {**hosts[0], "port": free_port(), "host_key": pub}
    both = provider(tmp_path, [gone, {**hosts[1], "host_key": _pub(servers.all[1])}])
    with pytest.raises(HostError, match=r"worker0 .*is closed"):
        both.create(quiet)
    (unknown,) = both.resources()
    assert (unknown.state, unknown.kind) == ("unknown", "folder")
    with pytest.raises(HostError, match=r"worker0 .*is closed.*what is there stays"):
        both.remove(quiet)


def _pub(server) -> str:
    return server.host_key.with_suffix(".pub").read_text()
