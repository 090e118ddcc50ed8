"""The files that OpenSSH reads, read by OpenSSH."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine
from drumline.cluster.ssh.config import end_shared, socket_folder, write_config
from drumline.cluster.ssh.keys import (
    Origin,
    cluster_key,
    host_key,
    make_key_pair,
    pin_host_key,
    read_pins,
    write_pins,
)
from drumline.core.errors import ClusterError
from sshd import RELAY, wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="no ssh here; install openssh-client"
)


def ssh(config, *words, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["ssh", "-F", config, "-o", "BatchMode=yes", *words],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        **options,
    )


def test_openssh_reaches_the_nodes_by_our_files(servers, tmp_path, monkeypatch):
    first = servers.start(0)
    second = servers.start(1)
    relay = tmp_path / "a %h relay's.py"
    relay.write_text(RELAY)
    proxy = (sys.executable, str(relay), str(second.machine.port), "$HOME", "100%")
    machines = [first.machine, replace(second.machine, host="203.0.113.9", port=9, proxy=proxy)]
    user = tmp_path / "user"
    (user / ".ssh").mkdir(parents=True)
    (user / ".ssh" / "config").write_text(f"Host *\n  ProxyCommand touch {user}/trap\n")
    monkeypatch.setenv("HOME", str(user))
    config = write_config(servers.home, machines)
    try:
        for machine in machines:
            done = ssh(config, machine.name, "echo it works")
            assert (done.stdout, done.returncode) == ("it works\n", 0), done.stderr
            # The second time goes through the first one's connection
            assert ssh(config, "-O", "check", machine.name).returncode == 0
    finally:
        end_shared(servers.home)
    for one in servers.all:
        wait_until(lambda one=one: not one.children(), "the end of the shared connections")
    assert not (user / "trap").exists()
    assert list((user / ".ssh").iterdir()) == [user / ".ssh" / "config"]
    pin_host_key(servers.home, 0, make_key_pair("").public, Origin.GIVEN)
    done = ssh(config, "worker0", "echo it works")
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_odd_words_come_back_as_they_were(home):
    machines = [
        Machine(
            node=0,
            host="fe80::1%eth0",
            address="",
            user="mé ! #",
            key_file='/tmp/a "b" %d #c\\d',
            port=2222,
        ),
        Machine(node=1, host="h", address="", user="u", key_file=""),
    ]
    config = write_config(home, machines)
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    facts = dict(line.split(" ", 1) for line in ssh(config, "-G", "worker0").stdout.splitlines())
    assert facts["user"] == "mé ! #"
    assert facts["hostname"] == "fe80::1%eth0"
    assert facts["hostkeyalias"] == "drumline-lab-worker0"
    assert facts["stricthostkeychecking"] == "true"
    assert facts["identityfile"] == '/tmp/a "b" %%d #c\\d'
    assert facts["identitiesonly"] == "yes"
    facts = dict(line.split(" ", 1) for line in ssh(config, "-G", "worker1").stdout.splitlines())
    assert facts["identitiesonly"] == "no"
    with pytest.raises(ClusterError, match="line break"):
        write_config(home, [replace(machines[0], user="a\nProxyCommand touch /tmp/trap")])


def test_sockets_have_short_paths(tmp_path):
    home = ClusterHome(tmp_path / ("long" * 30) / "lab")
    folder = socket_folder(home)
    try:
        assert len(str(folder)) <= 45
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o777)
        with pytest.raises(ClusterError, match="not a folder of yours alone"):
            socket_folder(home)
    finally:
        folder.rmdir()


def test_pins_are_kept_by_node(home):
    keys = [host_key(home, node) for node in range(2)]
    for node, key in enumerate(keys):
        pin_host_key(home, node, key.public, Origin.INJECTED)
    assert read_pins(home, 1)[0].key == " ".join(keys[1].public.split()[:2])
    found = subprocess.run(
        ["ssh-keygen", "-F", "drumline-lab-worker1", "-f", home.ssh / "known_hosts"],
        capture_output=True,
        text=True,
    )
    assert read_pins(home, 1)[0].key in found.stdout
    write_pins(home, 0, [])
    assert read_pins(home, 0) == []
    assert len(read_pins(home, 1)) == 1
    with pytest.raises(ClusterError, match="no public key"):
        pin_host_key(home, 0, "ssh-ed25519 nonsense", Origin.GIVEN)
    assert host_key(home, 0) == keys[0]
    assert cluster_key(home).stat().st_mode & 0o777 == 0o600
