"""Machines of one's own: claimed, used, given back as they were."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from drumline.cluster.fleet import Fleet
from drumline.cluster.home import ClusterHome
from drumline.cluster.keys import cluster_key, make_key_pair
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh_hosts import SshHosts, find_host_keys
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

    # Another cluster does not get them
    other = provider(tmp_path, hosts_of(servers), name="other")
    with pytest.raises(HostError, match=r"is that of worker\d of the cluster lab2"):
        other.create(quiet)
    assert other.resources() == []
    other.remove(quiet)
    assert all(folder.is_dir() for folder in folders)

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
    ours.remove(quiet)
    assert (folder / "thesis.tex").exists()
    assert not (servers.all[1].home / "drumline").exists()
    for root in ("~", "/", "~/x/.."):
        with pytest.raises(HostError, match="not a folder for Drumline alone"):
            provider(tmp_path, hosts_of(servers), root=root).create(quiet)


def test_hosts_that_are_not_known_or_not_there(servers, lab, tmp_path):
    pub = servers.all[0].host_key.with_suffix(".pub").read_text()
    hosts = hosts_of(servers)
    (lab / ".ssh" / "known_hosts").unlink()
    ours = provider(tmp_path, hosts)
    with pytest.raises(ClusterError, match=rf"ssh-keyscan -t ed25519 -p {hosts[0]['port']} 127"):
        ours.create(quiet)
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
