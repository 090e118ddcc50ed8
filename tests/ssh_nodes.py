"""Real SSH servers on loopback ports, as nodes: each has a folder of its own, and nothing else."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from drumline.cluster.providers import Machine
from sshd import need_sshd

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
PermitRootLogin prohibit-password
"""
ENTRY = """
Host {name}
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile "{folder}/id"
    IdentitiesOnly yes
    UserKnownHostsFile "{folder}/known_hosts"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    BatchMode yes
"""


@dataclass
class SshNodes:
    """SSH servers, and the configuration that reaches them as worker0, worker1, …"""

    folder: Path
    machines: list[Machine] = field(default_factory=list)
    servers: list[subprocess.Popen] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "config"

    def start(self, count: int) -> None:
        sshd = need_sshd()
        make_key(self.folder / "id")
        make_key(self.folder / "host_key")
        shutil.copy(self.folder / "id.pub", self.folder / "authorized_keys")
        host_key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        known, entries = "", ""
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        for node in range(count):
            port = free_port()
            server = self.folder / f"sshd_config{node}"
            server.write_text(CONFIG.format(port=port, folder=self.folder))
            log = (self.folder / f"sshd{node}.log").open("wb")
            with log:
                self.servers.append(
                    subprocess.Popen([sshd, "-D", "-e", "-f", str(server)], stderr=log)
                )
            root = self.folder / f"node {node}"  # a space, as home folders may have
            root.mkdir()
            machine = Machine(
                node=node,
                host="127.0.0.1",
                address="127.0.0.1",
                user=user,
                port=port,
                root=str(root),
            )
            self.machines.append(machine)
            known += f"[127.0.0.1]:{port} {host_key}\n"
            entries += ENTRY.format(name=machine.name, port=port, user=user, folder=self.folder)
        (self.folder / "known_hosts").write_text(known)
        self.config.write_text(entries)
        for machine in self.machines:
            wait_for_port(machine.port)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()


def make_key(path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=20
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nothing listens on port {port}")
