"""`NodeOrder`: a simulated node as ordered; and its folder, written before it starts.

workerK/
    home/        the home folder of its user
    drumline/    R: environment, code, jobs, limits
    tmp/         its /var/tmp, which TMPDIR names
    bin/         poweroff, shutdown, halt: they end the node, never this machine; systemctl
    etc/         passwd, group, shadow: as here, but the user's home is the node's
    ssh/         its /etc/ssh: sshd_config, ssh_host_ed25519_key, authorized_keys
    node.log     output of its first process and its SSH server

Bind mounts in the node's mount namespace put them where programs look for them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drumline.core.errors import ClusterError
from drumline.core.json_lines import Message


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """One node. Without a `host_key` it has no SSH server: a place to try the network from."""

    name: str
    """its host name, too; unique on the switch"""
    folder: str
    """all its files; made if missing"""
    addresses: Sequence[str]
    """with the length of their network's prefix: 10.77.0.1/24"""
    routes: Sequence[str] = ()
    """further networks that are on the same switch: 10.77.1.0/24"""
    user: str = ""
    """what the user that runs all this is called there; "": as here"""
    host_key: str = field(default="", repr=False)
    """the SSH server's private key, in OpenSSH's format"""
    public_keys: Sequence[str] = ()
    """who is let in, as lines of authorized_keys"""
    rate: int | None = None
    """of its link: bits per second in either direction"""
    delay_ms: float = 0.0
    boot_s: float = 0.0
    """the SSH server starts so much later"""
    limits: Mapping[str, str] = field(default_factory=dict)
    """files for R/limits: deadline, idle_minutes, busy"""
    check_s: float = 5.0
    """how often they are looked at"""
    disk_mb: int | None = None
    """R is a disk of this size, in memory; None: a folder like any other"""

    @property
    def path(self) -> Path:
        """The node's folder."""
        return Path(self.folder)

    @property
    def root(self) -> Path:
        """Where everything goes that Drumline puts on the node."""
        return self.path / "drumline"

    @property
    def bare_addresses(self) -> list[str]:
        """Its addresses alone."""
        return [address.partition("/")[0] for address in self.addresses]


_HERE = Path(__file__).parent
LIMITS = _HERE.parents[1] / "life" / "limits.sh"
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_NO_SHELLS = ("nologin", "false")
_TRIES, _PAUSE_S = 40, 0.05  # at a folder into which a process that was just killed still writes
_POWER_OFF = "#!/bin/sh\nkill -TERM 1\n"


def find_server() -> str | None:
    """Find the path of the SSH server (sshd) that a twin cluster's simulated nodes run."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")


def login_name() -> str:
    """Return the user's login name on a twin cluster's nodes: as on this machine, else `user`."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "user"


def write_folder(order: NodeOrder, *, hosts: Path) -> Message:
    """Write a twin node's files, or raise OSError; returns what its init process does with them."""
    made = [order.path / name for name in ("home", "drumline", "tmp", "bin", "etc", "ssh")]
    for folder in made:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("poweroff", "shutdown", "halt"):
        _write(order.path / "bin" / name, _POWER_OFF, mode=0o700)
    _write(order.path / "bin" / "systemctl", (_HERE / "systemctl.sh").read_text(), mode=0o700)
    limits, power_off = str(order.root / "limits"), str(order.path / "bin" / "poweroff")
    timer = [shutil.which("sh") or "/bin/sh", str(LIMITS), limits, power_off]
    return {
        "name": order.name,
        "memory": _memory(order),
        "folders": ["/run/sshd"] if _hides_run(order) else [],
        "binds": _binds(order, hosts),
        "limits": dict(order.limits),
        "limits_folder": limits,
        "check_s": order.check_s,
        "timer": timer if order.limits else [],
        "boot_s": order.boot_s,
        "server": _server(order) if order.host_key else [],
    }


def _memory(order: NodeOrder) -> list[tuple[str, str]]:
    """What lies in memory: shared memory, /run, and a small disk where one is wanted."""
    found = [("/dev/shm", "mode=1777")] if Path("/dev/shm").is_dir() else []
    if _hides_run(order):
        found.append(("/run", "mode=755"))
    if order.disk_mb is not None:
        found.append((str(order.root), f"mode=700,size={order.disk_mb}m"))
    return found


def _hides_run(order: NodeOrder) -> bool:
    """Whether the node has a /run of its own: this machine's services must not hear of it.

    Not where programs that it needs are there (NixOS), nor its own files.
    """
    needed = (sys.executable, sys.prefix, find_server() or "", "/bin/sh", order.folder)
    return not any(os.path.realpath(path).startswith("/run/") for path in needed)


def _binds(order: NodeOrder, hosts: Path) -> list[tuple[str, str]]:
    """Which of its files the node sees in place of this machine's."""
    pairs = [(hosts, "/etc/hosts"), (order.path / "ssh", "/etc/ssh")]
    for name, text in _accounts(order).items():
        _write(order.path / "etc" / name, text, mode=0o600 if name == "shadow" else 0o644)
        pairs.append((order.path / "etc" / name, f"/etc/{name}"))
    needed = (sys.executable, sys.prefix, order.folder)
    if not any(os.path.realpath(path).startswith("/var/tmp/") for path in needed):
        pairs.append((order.path / "tmp", "/var/tmp"))
    return [(str(source), target) for source, target in pairs if os.path.exists(target)]


def _accounts(order: NodeOrder) -> dict[str, str]:
    """Return the node's passwd, group and shadow."""
    user, uid, gid = order.user or login_name(), os.geteuid(), os.getegid()
    try:
        shell = pwd.getpwuid(uid).pw_shell
    except KeyError:
        shell = ""
    if not os.access(shell, os.X_OK) or os.path.basename(shell) in _NO_SHELLS:
        shell = shutil.which("bash") or "/bin/sh"
    mine = f"{user}:x:{uid}:{gid}:{user}:{order.path}/home:{shell}\n"
    files = {"passwd": mine + _lines("/etc/passwd", without={0: user, 2: str(uid)})}
    if uid != 0:
        # With a group called tty the SSH server wants to give terminals to it, but may not.
        files["group"] = _lines("/etc/group", without={0: "tty"})
    # Without a password, but not locked (`!`, or no line that can be read): that is for keys, too.
    files["shadow"] = f"{user}:*:::::::\n" + _lines("/etc/shadow", without={0: user})
    return files


def _lines(path: str, *, without: dict[int, str]) -> str:
    """Return the lines of an account file, without those that have one of these columns."""
    try:
        lines = Path(path).read_text(errors="surrogateescape").splitlines(keepends=True)
    except OSError:
        return ""

    def stays(line: str) -> bool:
        columns = line.rstrip("\n").split(":")
        return not any(columns[place : place + 1] == [text] for place, text in without.items())

    return "".join(filter(stays, lines))


def _server(order: NodeOrder) -> list[str]:
    """Write the SSH server's files; returns how to start it."""
    folder = order.path / "ssh"
    key = folder / "ssh_host_ed25519_key"
    _write(key, order.host_key.rstrip("\n") + "\n", mode=0o600)
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True)
    _write(key.with_suffix(".pub"), public.stdout, mode=0o644)
    keys = "".join(f"{key.strip()}\n" for key in order.public_keys)
    _write(folder / "authorized_keys", keys, mode=0o600)
    _write(folder / "sshd_config", _server_config(order), mode=0o600)
    program = find_server()
    assert program is not None, "who starts the host looks for it first"
    return [program, "-D", "-e", "-f", "/etc/ssh/sshd_config"]


def _server_config(order: NodeOrder) -> str:
    folder = order.path / "ssh"
    path = f"{order.path / 'bin'}:{os.path.dirname(sys.executable)}:{_PATH}"
    if os.geteuid() == 0:
        path = f"{path}:{_SBIN}"
    # without a name server, torch warns of each connection that its address has no name
    quiet = "TORCH_CPP_LOG_LEVEL=ERROR"
    variables = (f"HOME={order.path}/home", f"PATH={path}", "TMPDIR=/var/tmp", quiet)
    lines = [
        *(f"ListenAddress {address}:22" for address in order.bare_addresses),
        f"AuthorizedKeysFile {_quoted(str(folder / 'authorized_keys').replace('%', '%%'))}",
        f"AllowUsers {order.user or login_name()}",
        f"SetEnv {' '.join(_quoted(variable) for variable in variables)}",
    ]
    return "".join(f"{line}\n" for line in lines) + (_HERE / "sshd_config").read_text()


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _write(path: Path, text: str, *, mode: int) -> None:
    path.write_text(text, errors="surrogateescape")
    path.chmod(mode)


def remove_folder(path: Path) -> None:
    """Remove a twin node's folder with everything in it, read-only folders too."""
    reason: object = ""
    for _ in range(_TRIES):
        try:
            for folder, names, _ in os.walk(path):
                for name in names:  # before they are walked through
                    if not os.path.islink(inner := os.path.join(folder, name)):
                        os.chmod(inner, stat.S_IRWXU)
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            reason = error
        if not path.exists():
            return
        time.sleep(_PAUSE_S)
    raise ClusterError(f"cannot remove {path}: {reason}; remove it by hand, then run down again")
