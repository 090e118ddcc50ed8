"""Real SSH servers on this machine's loopback, one for each node of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine
from drumline.cluster.ssh.keys import Origin, cluster_key, host_key, pin_host_key

RELAY = """
import os, socket, sys, threading
print("a proxy may talk", file=sys.stderr)
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def pump(get, put):
    while data := get(65536):
        put(data)
threading.Thread(target=pump, args=(sock.recv, lambda d: os.write(1, d)), daemon=True).start()
pump(lambda n: os.read(0, n), sock.sendall)
"""
"""a proxy: joins its input and output with a port of this machine"""


def need_sshd() -> str:
    """Skip the test where there is no SSH server; returns it."""
    found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("no sshd here; install openssh-server")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_until(true, what: str, timeout_s: float = 20) -> None:
    """Wait for something that comes soon; says what did not."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Server:
    """One node's SSH server; `home` is what its user takes for the home folder."""

    folder: Path
    machine: Machine
    process: subprocess.Popen
    home: Path

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    def children(self) -> list[int]:
        """Processes that serve connections."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def stop(self) -> None:
        """Freeze it with all that it serves, as a machine that hangs."""
        for pid in [self.process.pid, *self.children()]:
            os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        if self.process.poll() is not None:
            return
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)


class Servers:
    """Starts servers whose keys a cluster's folder knows, and ends all of them."""

    def __init__(self, folder: Path, home: ClusterHome) -> None:
        self.sshd = need_sshd()
        self.folder = folder
        self.home = home
        self.all: list[Server] = []

    def start(self, node: int, *, more: str = "", env: str = "", **changes) -> Server:
        folder = self.folder / f"node {node}"
        user_home = folder / "home"
        user_home.mkdir(parents=True, exist_ok=True)
        pair = host_key(self.home, node)
        (folder / "host_key").write_text(pair.private)
        (folder / "host_key").chmod(0o600)
        (folder / "host_key.pub").write_text(pair.public)
        pin_host_key(self.home, node, pair.public, Origin.INJECTED)
        public = cluster_key(self.home).with_suffix(".pub").read_text()
        (folder / "authorized_keys").write_text(public)
        port = free_port()
        (folder / "sshd_config").write_text(
            f'Port {port}\nListenAddress 127.0.0.1\nHostKey "{folder}/host_key"\n'
            f'AuthorizedKeysFile "{folder}/authorized_keys"\nPidFile "{folder}/pid"\n'
            f'SetEnv "HOME={user_home}" {env}\nStrictModes no\nUsePAM no\n'
            f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 200\n{more}"
        )
        process = subprocess.Popen(
            [self.sshd, "-D", "-f", folder / "sshd_config", "-E", folder / "log"],
            stdin=subprocess.DEVNULL,
        )
        machine = Machine(
            node=node,
            host="127.0.0.1",
            address="127.0.0.1",
            port=port,
            user=_me(),
            **changes,
        )
        server = Server(folder, machine, process, user_home)
        self.all.append(server)
        wait_until(lambda: _listens(port) or process.poll() is not None, f"sshd of node {node}")
        assert process.poll() is None, (folder / "log").read_text()
        return server

    def end(self) -> None:
        for server in self.all:
            server.end()


def _me() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
