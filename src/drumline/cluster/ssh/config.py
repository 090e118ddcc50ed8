"""The cluster's own SSH `config`, for OpenSSH and for Ansible, and the connections that they share.

    ssh -F ~/.drumline/clusters/NAME/ssh/config worker1

With `-F`, OpenSSH reads neither the user's configuration nor the machine's, so that nobody's
`Host *` changes anything.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine
from drumline.cluster.ssh.keys import KEY, host_key_alias
from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic

ALIVE_S, ALIVE_COUNT = 5, 2
"""keepalive: its interval, and how many unanswered ones are allowed"""
_EXIT_S = 10.0
_MAX_SOCKET_FOLDER = 45  # a socket's path has 103 characters; ssh adds 40 for %C and 18 of its own


def write_config(home: ClusterHome, machines: Sequence[Machine]) -> Path:
    """Write the SSH configuration that OpenSSH and Ansible reach nodes with; returns its path."""
    home.make()
    for_all = Path(__file__).with_name("ssh_config").read_text()
    parts = [
        "# Written by Drumline, at each `up`. Use it with: ssh -F THIS-FILE worker0\n",
        *(_section(home, machine) for machine in machines),
        for_all.format(
            known_hosts=_path(home.known_hosts),
            sockets=_path(socket_folder(home), "/%C"),
            alive_s=ALIVE_S,
            alive_count=ALIVE_COUNT,
        ),
    ]
    write_atomic(home.ssh_config, "\n".join(parts), mode=0o600)
    return home.ssh_config


def socket_folder(home: ClusterHome) -> Path:
    """Make the folder of OpenSSH's shared connections (ControlPath), with a short enough path."""
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
    """End the shared SSH connections that OpenSSH and Ansible keep, and remove their folder."""
    hang_up(socket_folder(home))
    shutil.rmtree(socket_folder(home), ignore_errors=True)


def hang_up(folder: Path) -> None:
    """End the shared SSH connections whose control sockets are in a folder, all at once."""
    quiet = subprocess.DEVNULL
    leaving = [
        subprocess.Popen(
            ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "node"],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )
        for socket in (folder.iterdir() if folder.is_dir() else ())
        if socket.is_socket()
    ]
    for one in leaving:
        try:
            one.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def _section(home: ClusterHome, machine: Machine) -> str:
    name = host_key_alias(home.name, machine.node)
    options = [
        ("HostName", _quoted(machine.host.replace("%", "%%"))),
        ("Port", str(machine.port)),
        ("User", _quoted(machine.user)),
        ("HostKeyAlias", name),
    ]
    if machine.key_file != "":  # else: the agent's keys, and ~/.ssh/id_*
        key = machine.key_file or home.ssh / KEY
        options += [("IdentityFile", _path(Path(key).expanduser())), ("IdentitiesOnly", "yes")]
    if machine.proxy:  # the rest of the line goes to a shell, after %-signs were replaced
        options.append(("ProxyCommand", _one_line(shlex.join(machine.proxy)).replace("%", "%%")))
    lines = "".join(f"    {key} {value}\n" for key, value in options)
    return f"Host {machine.name} {name}\n{lines}"


def _path(path: Path, end: str = "") -> str:
    """Write a path so that OpenSSH reads it back: quoted, with %-signs that mean themselves."""
    text = str(path.absolute())
    if "${" in text:
        raise ClusterError(
            f"OpenSSH would take the ${{…}} in {text} for a variable; set DRUMLINE_HOME to a "
            f"folder without it"
        )
    return _quoted(text.replace("%", "%%") + end)


def _quoted(value: str) -> str:
    """Write a value of the configuration so that spaces, quotes and # belong to it."""
    return '"' + _one_line(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _one_line(value: str) -> str:
    if "\n" in value or "\r" in value:
        raise ClusterError(f"{value!r} has a line break, which SSH's configuration cannot hold")
    return value
