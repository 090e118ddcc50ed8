"""The provider `twin`: nodes that outlive the command, and leave nothing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from twins import Twin, enter, make_key, need_twins, wait_for_banner

from drumline.cluster.home import HOME, ClusterHome
from drumline.cluster.providers import Machine
from drumline.cluster.providers.twin.control import (
    Control,
    check_server,
    find_processes,
    find_twin_way,
    processes_of,
)
from drumline.cluster.providers.twin.folder import LIMITS
from drumline.cluster.providers.twin.provider import TwinProvider, reap
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import cluster_key, host_key
from drumline.core.errors import ClusterError
from drumline.core.nodes import address_of
from drumline.node.services import start_time
from namespaces import network_namespaces

DETACHED = "setsid sh -c 'sleep 600; :' x"
"""a job that has left its session; further words mark it in process lists"""


def quiet(*_: str) -> None:
    """Say nothing."""


class Rig:
    """A provider with keys, and OpenSSH as a client."""

    def __init__(self, folder: Path, **spec: object) -> None:
        os.environ[HOME] = str(folder / "home with ö")
        self.home = ClusterHome.of("rehearsal")
        self.home.make()
        self.spec = ClusterSpec(**{"name": "rehearsal", "nodes": 2, **spec})
        self.provider = TwinProvider(self.spec, self.home)
        nodes = range(self.spec.nodes)
        known = [f"{address_of(node)} {host_key(self.home, node).public}\n" for node in nodes]
        self.home.known_hosts.write_text("".join(known))
        self.control = Control(self.home.twin.resolve())

    def spaces(self) -> set[str]:
        """The network namespaces that the nodes' processes are in."""
        found = processes_of(self.control.home)
        return {os.readlink(f"/proc/{process.pid}/ns/net") for process in found}

    def _client(self, machine: Machine, *options: str) -> list[str]:
        proxy = shlex.join(machine.proxy).replace("%", "%%")
        words = ["ssh", "-F", "none", "-i", str(cluster_key(self.home)), "-o", "BatchMode=yes"]
        words += ["-o", f"ProxyCommand={proxy}", "-o", "StrictHostKeyChecking=yes", *options]
        words += ["-o", f'UserKnownHostsFile="{self.home.known_hosts}"', "-o", "LogLevel=ERROR"]
        return [*words, f"{machine.user}@{machine.host}"]

    def ssh(self, machine: Machine, command: str, *options: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self._client(machine, *options), command],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def session(self, machine: Machine) -> subprocess.Popen:
        """An SSH session that lasts until somebody ends it."""
        return subprocess.Popen(
            [*self._client(machine), "echo ready; sleep 600"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def say(self, machine: Machine, command: str, *options: str) -> str:
        done = self.ssh(machine, command, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def rig(tmp_path, monkeypatch):
    need_twins()
    monkeypatch.setenv(HOME, "")
    made = []

    def make(**spec: object) -> Rig:
        made.append(Rig(tmp_path, **spec))
        return made[-1]

    yield make
    for each in made:
        each.provider.remove(quiet)


def everything(rig: Rig) -> list[int]:
    """All processes of the nodes, the sessions' too: those that have files in the folder."""
    return [process.pid for process in processes_of(rig.control.home)]


def marked(word: str) -> list[int]:
    """Processes of this machine whose command has a word in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition, what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def test_twin_nodes_are_machines_of_their_own(rig, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-7d1")
    there = rig(max_hours=1, twin={"link": {"rate": "100mbit"}})
    planned = there.provider.plan()
    assert [r.detail for r in planned.resources] == ["worker0, 10.77.0.1", "worker1, 10.77.0.2"]
    assert (planned.exists, planned.price_usd, planned.hours) == ((), 0.0, 1.0)
    told: list[tuple[str, str]] = []
    machines = there.provider.create(lambda *words: told.append(words))
    assert told == [("worker0", "starts"), ("worker1", "starts")]
    assert [m.address for m in machines] == ["10.77.0.1", "10.77.0.2"]
    kinds = [r.kind for r in there.provider.resources()]
    assert kinds == ["simulated-network", "simulated-node", "simulated-node"]
    assert there.provider.create(quiet) == machines == there.provider.machines(), "no change"
    facts = json.loads((there.control.home / "host.json").read_text())
    assert facts["start"] == start_time(facts["pid"])
    spaces = there.spaces()
    assert len(spaces) == 3, "two nodes and the switch"
    first, second = machines
    for machine in machines:
        assert wait_for_banner(machine.proxy).startswith("SSH-2.0-OpenSSH")

    # its own home, name, temporary files and process list
    folder = there.control.home / "worker1"
    assert there.say(second, "hostname; pwd; echo ~; echo $TMPDIR") == (
        f"worker1\n{folder}/home\n{folder}/home\n/var/tmp"
    )
    there.say(second, "touch ~/mine $TMPDIR/mine /dev/shm/mine-of-a-twin")
    assert (folder / "home" / "mine").exists()
    assert (folder / "tmp" / "mine").exists()
    assert not Path("/dev/shm/mine-of-a-twin").exists()
    assert second.root == str(folder / "drumline")
    assert int(there.say(second, "ls -d /proc/[0-9]* | wc -l")) < 20
    assert there.say(second, "tty", "-tt").startswith("/dev/pts/"), "a terminal"
    assert there.say(second, "cat /proc/1/environ | grep -ac canary; :") == "0"
    assert there.say(second, "umask; command -v poweroff") == f"0022\n{folder}/bin/poweroff"
    # the others by address and by name, over a shaped link; the machine's network not at all
    probe = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 5).recv(3))"
    python = shlex.join([sys.executable, "-I", "-S", "-c", probe])
    for address in ("10.77.0.1", "worker0"):
        assert there.say(second, f"{python} {address}") == "b'SSH'"
    assert there.ssh(second, f"{python} 192.0.2.1").returncode == 1
    rate = there.say(second, "PATH=$PATH:/sbin:/usr/sbin tc qdisc show dev eth0")
    assert "tbf" in rate
    assert "rate 100Mbit" in rate

    # only with the right keys, on both sides
    key = cluster_key(there.home)
    make_key(there.home.ssh, "stranger")
    stranger = ("-o", "IdentitiesOnly=yes", "-i", str(there.home.ssh / "stranger"))
    words = there.ssh(first, "true", *stranger)
    assert words.returncode == 0, "the client's key is also offered"
    os.rename(key, there.home.ssh / "away")
    os.rename(there.home.ssh / "stranger", key)
    assert "Permission denied" in there.ssh(first, "true").stderr
    os.rename(there.home.ssh / "away", key)
    impostor = replace(first, host=second.host)
    assert "Host key verification failed" in there.ssh(impostor, "true").stderr

    # removed with everything in it, read-only folders too
    there.say(first, "mkdir -p ~/a/b && touch ~/a/b/c && chmod 500 ~/a/b ~/a")
    session = "twin-session-8a1"
    there.say(first, f"{DETACHED} {session} >/dev/null 2>&1 </dev/null &")
    wait_until(lambda: marked(session), "the detached process")
    there.provider.remove(lambda *words: told.append(words))
    assert told[2:] == [("worker0", "removed"), ("worker1", "removed")]
    assert there.provider.resources() == []
    assert there.provider.machines() == []
    assert not marked(session)
    assert not spaces & network_namespaces()
    assert not there.control.home.exists()
    there.provider.remove(quiet)  # again, with nothing there
    gone = subprocess.run(first.proxy, capture_output=True, text=True, timeout=20, check=False)
    assert gone.returncode == 1
    assert "do not run" in gone.stderr


@pytest.mark.slow
def test_twin_what_dies_is_gone_and_made_anew(rig):
    there = rig()
    first, second = there.provider.create(quiet)
    for machine in (first, second):
        wait_for_banner(machine.proxy)
    words = [f"twin-{k}-{uuid.uuid4().hex}" for k in "ab"]
    for machine, word in zip((first, second), words, strict=True):
        there.say(machine, f"{DETACHED} {word} >/dev/null 2>&1 </dev/null &")
        there.say(machine, f"echo x > {shlex.quote(machine.root)}/kept")

    # one machine dies: all of it, and nothing else
    sessions = [there.session(machine) for machine in (first, second)]
    for session in sessions:
        assert session.stdout.read(6) == b"ready\n"
    there.control.ask("kill", name="worker1")
    assert sessions[1].wait(20) == 255
    sessions[1].stdout.close()
    assert sessions[0].poll() is None
    assert not marked(words[1])
    assert marked(words[0])
    assert [m.name for m in there.provider.machines()] == ["worker0"]
    assert "worker1 has ended" in there.ssh(second, "true").stderr
    again = there.provider.create(quiet)
    assert again[0] == first, "it was not touched"
    assert again[1].identity != second.identity
    wait_for_banner(again[1].proxy)
    assert there.say(again[1], f"ls {shlex.quote(second.root)}") == "limits", "an empty disk"
    assert there.say(again[0], f"cat {shlex.quote(first.root)}/kept") == "x"

    # a link is cut, and heals
    probe = "import socket; socket.create_connection(('10.77.0.2', 22), 1)"
    ask = [*enter(there.control.home, "worker0"), sys.executable, "-I", "-S", "-c", probe]
    assert subprocess.run(ask, capture_output=True, timeout=20).returncode == 0
    there.control.ask("cut", name="worker1")
    assert subprocess.run(ask, capture_output=True, timeout=20).returncode == 1
    there.control.ask("heal", name="worker1")
    wait_for_banner(again[1].proxy)
    assert subprocess.run(ask, capture_output=True, timeout=20).returncode == 0

    # the host dies: all of them
    spaces = there.spaces()
    host = next(process for process in processes_of(there.control.home) if not process.name)
    os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: not everything(there) and not marked(words[0]), "all to be gone")
    assert sessions[0].wait(20) == 255
    sessions[0].stdout.close()
    assert there.provider.resources() == []
    assert there.provider.machines() == []
    assert not spaces & network_namespaces()
    assert [m.name for m in there.provider.create(quiet)] == ["worker0", "worker1"]
    wait_for_banner(there.provider.machines()[0].proxy)
    reap(quiet)
    assert there.provider.resources() == []
    assert not there.control.home.exists()


@pytest.mark.slow
def test_twin_limits_end_a_node_and_the_last_one_all(rig, tmp_path):
    there = rig(twin={"boot_s": 600.0})
    first, second = there.provider.create(quiet)
    limits = [Path(machine.root) / "limits" for machine in (first, second)]
    refused = subprocess.run(first.proxy, capture_output=True, text=True, timeout=20, check=False)
    assert "10.77.0.1:22" in refused.stderr, "it boots for ten minutes"
    assert abs(int((limits[0] / "deadline").read_text()) - time.time() - 8 * 3600) < 600
    assert float((limits[0] / "idle_minutes").read_text()) == 60
    (limits[0] / "deadline").write_text(f"{round(time.time()) - 1}\n")
    wait_until(lambda: [m.node for m in there.provider.machines()] == [1], "the deadline")
    os.utime(limits[1] / "busy", (time.time() - 3601,) * 2)
    wait_until(lambda: not everything(there), "the idle limit, and the host")
    assert there.provider.resources() == []


def test_twin_nodes_come_and_go_with_any_addresses(tmp_path):
    need_twins()
    with Twin(tmp_path / "switch") as twin:
        twin.add("i-0abc", "10.77.1.5", "203.0.113.5", user="ubuntu", routes=("198.51.100.0/24",))
        twin.add_place("laptop", "203.0.113.77")
        twin.add_place("outside", "198.51.100.9", routes=["203.0.113.0/24"])
        wait_for_banner(twin.proxy("i-0abc"))
        with pytest.raises(ClusterError, match="i-0abc is there already"):
            twin.add("i-0abc", "10.77.1.6")
        scan = (
            "import socket\nfor port in range(1, 1024):\n"
            "    if socket.socket().connect_ex(('203.0.113.5', port)) == 0: print(port)"
        )
        look = [sys.executable, "-I", "-S", "-c", scan]
        for place in ("laptop", "outside"):
            seen = subprocess.run([*twin.enter(place), *look], capture_output=True, timeout=60)
            assert seen.stdout == b"22\n", seen.stderr
        (twin.keys / "known_hosts").write_text(f"203.0.113.5 {make_key(twin.keys, 'i-0abc')[1]}\n")
        words = ["ssh", "-F", "none", "-i", str(twin.keys / "client"), "-o", "BatchMode=yes"]
        words += ["-o", f"UserKnownHostsFile={twin.keys}/known_hosts", "ubuntu@203.0.113.5"]
        direct = subprocess.run(
            [*twin.enter("laptop"), *words, "id -un; cd && pwd"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert direct.stdout == f"ubuntu\n{twin.home}/i-0abc/home\n", direct.stderr
        with pytest.raises(ClusterError, match="there is no worker9 here"):
            twin.remove("worker9")
        twin.remove("i-0abc")
        twin.add("i-0abc", "10.77.1.5", disk_mb=1)
        wait_for_banner(twin.proxy("i-0abc"))
        with twin.control.dial() as line:
            line.sendall(b"nonsense\n")
            assert b"error" in line.recv(999)
        assert {node["name"] for node in twin.status()} == {"laptop", "outside", "i-0abc"}
    wait_until(lambda: not processes_of(twin.home), "all to be gone")


def test_twin_that_cannot_be_made_leaves_nothing(rig):
    there = rig(twin={"link": {"delay_ms": 5.0}})
    netem = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    if subprocess.run([*find_twin_way().make, *netem], capture_output=True).returncode == 0:
        pytest.skip("this kernel has netem, so that it can be made")
    with pytest.raises(ClusterError, match=r"twin\.link needs netem .* leave delay_ms or rate out"):
        there.provider.create(quiet)
    wait_until(lambda: not there.provider.resources(), "the host to leave with its last node")


AS_SOMEBODY = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_twin import quiet, Rig, wait_for_banner
rig = Rig(Path(sys.argv[1]))
try:
    first, second = rig.provider.create(quiet)
    wait_for_banner(second.proxy)
    ask = "id -u; hostname; pwd; touch ~/x; chmod 500 ~; ls /proc | grep -cx 1"
    print(rig.say(second, ask + "; grep CapEff /proc/self/status"))
    print(rig.say(second, "tty", "-tt").startswith("/dev/pts"))
finally:
    rig.provider.remove(quiet)
print(rig.provider.resources(), rig.home.twin.exists())
"""


def nobody() -> list[str]:
    """What to put before the words of a Python command to run it as nobody."""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command += ["env", f"PYTHONPATH={':'.join(filter(None, sys.path))}"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}"):
        tried = [*command, python, "-c", "import drumline.cluster.spec, pytest"]
        if subprocess.run(tried, capture_output=True, cwd="/", check=False).returncode == 0:
            return [*command, python]
    pytest.skip("nobody cannot read this Python, nor this code")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("who", ["somebody", "root without rights"])
def test_twin_works_for_ordinary_users(tmp_path, who):
    need_twins()
    uid = 65534 if who == "somebody" else 1000
    prefix = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", sys.executable]
    if who == "somebody":
        prefix = nobody()
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        os.chown(folder, uid if who == "somebody" else 0, -1)
        refused = subprocess.run(
            [*prefix[:-1], "unshare", "--user", "--net", "true"], capture_output=True, text=True
        )
        if refused.returncode:
            pytest.skip(f"user namespaces are refused here: {refused.stderr.strip()}")
        script = AS_SOMEBODY.format(paths=[p for p in sys.path if p])
        done = subprocess.run(
            [*prefix, "-c", script, str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        home = folder / "home with ö/clusters/rehearsal/twin/worker1/home"
        lines = done.stdout.splitlines()
        assert lines[:4] == [str(uid), "worker1", str(home), "1"]
        assert lines[4].split() == ["CapEff:", f"{1 << 10:016x}"]
        assert lines[5:] == ["True", "[] False"]
        assert not [p for p in find_processes() if folder in p.home.parents]
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_twin_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("drumline.cluster.providers.twin.control.find_server", lambda: None)
    with pytest.raises(ClusterError, match="apt-get install openssh-server"):
        check_server()
    with pytest.raises(ClusterError, match=r"do not answer .* run drumline up"):
        Control(tmp_path).ask("status")
    with pytest.raises(LookupError, match="no simulated node worker0"):
        enter(tmp_path, "worker0")
    found = "drumline.cluster.providers.twin.control.find_server"
    monkeypatch.setattr(found, lambda: sys.executable)
    with pytest.raises(ClusterError, match="a colon in it; set DRUMLINE_HOME"):
        Control(tmp_path / "a:b").start()


@pytest.mark.parametrize(
    ("deadline", "idle_minutes", "busy_s_ago", "ends"),
    [
        ("+100", "60", 0, False),
        ("-1", "60", 0, True),
        ("-1", None, None, True),
        ("+100", "0.5", 31, True),
        ("+100", "0.5", 20, False),
        ("+100", "", 10**6, False),
        (None, None, None, False),
        (None, "1", None, False),
    ],
)
def test_limits_of_a_node(tmp_path, deadline, idle_minutes, busy_s_ago, ends):
    folder = tmp_path / "the limits"
    folder.mkdir()
    now = time.time()
    if deadline is not None:
        (folder / "deadline").write_text(f"{int(now) + int(deadline)}\n")
    if idle_minutes is not None:
        (folder / "idle_minutes").write_text(idle_minutes)
    if busy_s_ago is not None:
        (folder / "busy").touch()
        os.utime(folder / "busy", (now - busy_s_ago,) * 2)
    words = ["sh", str(LIMITS), str(folder), "touch", str(tmp_path / "the end")]
    subprocess.run(words, check=True, timeout=20)
    assert (tmp_path / "the end").exists() == ends
