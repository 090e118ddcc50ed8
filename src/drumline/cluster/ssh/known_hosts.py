"""The cluster's own `known_hosts` and `config`, for us, for OpenSSH and for Ansible.

    ssh -F ~/.drumline/clusters/NAME/ssh/config worker1

With `-F`, OpenSSH reads neither the user's configuration nor the machine's, so that nobody's
`Host *` changes anything. A node's key is pinned under a name that no other machine has
(`drumline-NAME-workerK`), since a cloud gives the addresses of removed machines to new ones. Each
pin says where its key was made: `injected` from here, `given` by the user, or `made-there`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from drumline.cluster.hang_up import hang_up
from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.keys import KEY, plain_key
from drumline.cluster.machine import Machine
from drumline.core.errors import ClusterError
from drumline.core.rundir import write_atomic

ALIVE_S, ALIVE_COUNT = 5, 2
"""a node that says nothing is asked so often, and given up after so many questions"""
_MAX_SOCKET_FOLDER = 45  # a socket's path has 103 characters; ssh adds 40 for %C and 18 of its own


class Origin(StrEnum):
    """Where a host key was made, and so who else may know it."""

    INJECTED = "injected"
    GIVEN = "given"
    MADE_THERE = "made-there"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A key that a node may prove itself with."""

    key: str
    """the kind and the key"""
    origin: Origin = Origin.GIVEN


def alias(cluster: str, node: int) -> str:
    """Return the name that a node's host key is pinned under."""
    return f"drumline-{cluster}-worker{node}"


def known_hosts_file(home: ClusterHome) -> Path:
    """Return where the pins are."""
    return home.ssh / "known_hosts"


def read_pins(home: ClusterHome, node: int) -> list[Pin]:
    """Return the keys that a node may prove itself with."""
    return _read_all(home).get(alias(home.name, node), [])


def write_pins(home: ClusterHome, node: int, pins: Iterable[Pin]) -> None:
    """Replace the keys that a node may prove itself with; none forgets the node.

    The file is replaced as a whole, so that there is no moment at which a node has no pins.
    """
    home.make()
    everybody = _read_all(home)
    everybody[alias(home.name, node)] = list(pins)
    lines = [
        f"{name} {pin.key} {pin.origin}\n" for name in sorted(everybody) for pin in everybody[name]
    ]
    write_atomic(known_hosts_file(home), "".join(lines), mode=0o600)


def pin_host_key(home: ClusterHome, node: int, key: str, origin: Origin) -> None:
    """Pin a node's only key, given as a line of a public key."""
    write_pins(home, node, [Pin(key=plain_key(key), origin=origin)])


def write_config(home: ClusterHome, machines: Sequence[Machine]) -> Path:
    """Write the configuration that OpenSSH and Ansible reach the nodes with; returns its path."""
    home.make()
    parts = ["# Written by Drumline, at each `up`. Use it with: ssh -F THIS-FILE worker0\n"]
    parts += [_section(home, machine) for machine in machines]
    parts.append(_for_all(home))
    path = home.ssh / "config"
    write_atomic(path, "\n".join(parts), mode=0o600)
    return path


def socket_folder(home: ClusterHome) -> Path:
    """Return where OpenSSH's shared connections are, with a path that is short enough; makes it.

    Raises:
        ClusterError: somebody else has made a folder of that name.
    """
    inside = home.ssh / "s"
    if len(os.fsencode(inside)) <= _MAX_SOCKET_FOLDER:
        inside.mkdir(mode=0o700, parents=True, exist_ok=True)
        return inside
    mark = hashlib.sha256(os.fsencode(home.path.absolute())).hexdigest()[:8]
    root = tempfile.gettempdir()
    root = root if len(os.fsencode(root)) <= _MAX_SOCKET_FOLDER - 25 else "/tmp"
    folder = Path(root) / f"drumline-{os.getuid()}-{mark}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise ClusterError(
            f"{folder} is not a folder of yours alone, so connections cannot be kept in it; remove "
            f"it, or set TMPDIR to another folder"
        )
    return folder


def end_shared(home: ClusterHome) -> None:
    """End the connections that OpenSSH and Ansible keep for a minute, and remove their folder."""
    hang_up(socket_folder(home))
    shutil.rmtree(socket_folder(home), ignore_errors=True)


def _section(home: ClusterHome, machine: Machine) -> str:
    name = alias(home.name, machine.node)
    words = [
        ("HostName", quoted(machine.host.replace("%", "%%"))),
        ("Port", str(machine.port)),
        ("User", quoted(machine.user)),
        ("HostKeyAlias", name),
    ]
    if machine.key_file != "":  # else: the agent's keys, and ~/.ssh/id_*
        key = machine.key_file or home.ssh / KEY
        words += [("IdentityFile", _path(Path(key).expanduser())), ("IdentitiesOnly", "yes")]
    if machine.proxy:  # the rest of the line goes to a shell, after %-signs were replaced
        words.append(("ProxyCommand", _one_line(shlex.join(machine.proxy)).replace("%", "%%")))
    lines = "".join(f"    {key} {value}\n" for key, value in words)
    return f"Host {machine.name} {name}\n{lines}"


def _for_all(home: ClusterHome) -> str:
    words = [
        ("UserKnownHostsFile", _path(known_hosts_file(home))),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("CheckHostIP", "no"),
        ("UpdateHostKeys", "no"),
        ("PasswordAuthentication", "no"),
        ("KbdInteractiveAuthentication", "no"),
        ("ForwardAgent", "no"),
        ("ServerAliveInterval", str(ALIVE_S)),
        ("ServerAliveCountMax", str(ALIVE_COUNT)),
        ("ConnectTimeout", "15"),
        ("ControlMaster", "auto"),
        ("ControlPath", _path(socket_folder(home), "/%C")),
        ("ControlPersist", "60"),
    ]
    return "Host *\n" + "".join(f"    {key} {value}\n" for key, value in words)


def _path(path: Path, end: str = "") -> str:
    """Write a path so that OpenSSH reads it back: quoted, with %-signs that mean themselves."""
    text = str(path.absolute())
    if "${" in text:
        raise ClusterError(
            f"OpenSSH would take the ${{…}} in {text} for a variable; set DRUMLINE_HOME to a "
            f"folder without it"
        )
    return quoted(text.replace("%", "%%") + end)


def quoted(word: str) -> str:
    """Write a word of the configuration so that spaces, quotes and # belong to it."""
    word = _one_line(word)
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _one_line(word: str) -> str:
    if "\n" in word or "\r" in word:
        raise ClusterError(f"{word!r} has a line break, which SSH's configuration cannot hold")
    return word


def _read_all(home: ClusterHome) -> dict[str, list[Pin]]:
    found: dict[str, list[Pin]] = {}
    try:
        lines = known_hosts_file(home).read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        words = line.split()
        if len(words) >= 3 and not line.startswith("#"):
            origin = words[3] if words[3:] and words[3] in list(Origin) else Origin.GIVEN
            pin = Pin(key=f"{words[1]} {words[2]}", origin=Origin(origin))
            found.setdefault(words[0], []).append(pin)
    return found
