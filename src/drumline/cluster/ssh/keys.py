"""Keys: the pair that the laptop signs in with, and the host keys that nodes prove themselves with.

    ssh/id_ed25519 (.pub)      the cluster's own key, or a user's key file in its place
    ssh/host-keys/workerK      a host key made here, for cloud-init to put on the node; it goes as
                               soon as the node has made one itself (`rotation`)
    ssh/known_hosts            pins: the host keys that each node may prove itself with

They are made without any tool, and nobody but their owner can read them. A node's key is pinned
under a name that no other machine has (`drumline-NAME-workerK`), since a cloud gives the addresses
of removed machines to new ones. For machines of your own, the pin is what cluster.yaml gives, or
what your known_hosts has, which is only read. There is no trust on first use: a key that nobody has
told us is never taken from the machine itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import asyncssh

from drumline.cluster.home import ClusterHome
from drumline.cluster.spec import HostSpec
from drumline.core.errors import ClusterError
from drumline.core.files import write_atomic

KEY = "id_ed25519"


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A private key and its public half, as OpenSSH writes them."""

    private: str
    public: str
    """one line: the kind, the key, a comment"""


def make_key_pair(comment: str) -> KeyPair:
    """Make an ed25519 SSH key pair."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    private, public = key.export_private_key().decode(), key.export_public_key().decode()
    return KeyPair(private=private, public=public)


def plain_key(public: str) -> str:
    """Return an SSH public key's line without its comment."""
    try:
        key = asyncssh.import_public_key(public.strip())
    except (asyncssh.KeyImportError, UnicodeEncodeError):
        raise ClusterError(
            f"{public[:60]!r} is no public key; it looks like: ssh-ed25519 AAAAC3Nza…"
        ) from None
    return " ".join(key.export_public_key().decode().split()[:2])


def cluster_key(home: ClusterHome) -> Path:
    """Return the cluster's own SSH private key, made on first use; its public half is beside it."""
    home.make()
    path = home.ssh / KEY
    _read_or_make(path, f"drumline-{home.name}")
    return path


def public_key(path: Path) -> str:
    """Return the public half of an SSH private key's file that `check_key` has accepted."""
    beside = path.with_name(path.name + ".pub")
    if beside.is_file():
        return beside.read_text().strip()
    try:
        return asyncssh.read_private_key(path).export_public_key().decode().strip()
    except asyncssh.KeyImportError:
        why = (
            f"the public half of {path} cannot be told without its passphrase; write it beside it "
            f"with: ssh-keygen -y -f {path} > {beside}"
        )
        raise ClusterError(why, path=path) from None


def host_key(home: ClusterHome, node: int) -> KeyPair:
    """Return the SSH host key to install on a node, the same until it is forgotten."""
    home.make()
    folder = home.ssh / "host-keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    return _read_or_make(folder / f"worker{node}", f"drumline-{home.name}-worker{node}")


def forget_host_key(home: ClusterHome, node: int) -> None:
    """Remove an SSH host key that was made here: the node has one of its own, or is gone."""
    for end in ("", ".pub"):
        (home.ssh / "host-keys" / f"worker{node}{end}").unlink(missing_ok=True)


def check_key(file: str | Path) -> Path:
    """Check a user's SSH private key, and return its path: private, without a passphrase."""
    path = Path(file).expanduser().absolute()
    try:
        found = path.stat()
        content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise ClusterError(
            f"the key file {path} cannot be read: {error.strerror}; name one that exists, or leave "
            f"key_file out",
            path=path,
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise ClusterError(f"{path} is no file, but key_file names a private key", path=path)
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise ClusterError(
            f"others can read the private key {path} (mode {mode:03o}), and SSH refuses such "
            f"keys; close it with: chmod 600 {path}",
            path=path,
        )
    try:
        asyncssh.import_private_key(content)
    except (asyncssh.KeyEncryptionError, asyncssh.KeyImportError) as error:
        if isinstance(error, asyncssh.KeyEncryptionError) or "assphrase" in str(error):
            raise ClusterError(
                f"the private key {path} has a passphrase, which nobody can type here; hand it to "
                f'your agent (ssh-add {path}) and write key_file: "", or leave key_file out',
                path=path,
            ) from None
        beside = path.with_suffix("")
        public = path.suffix == ".pub" and beside.is_file()
        hint = f"name its private half: {beside}" if public else "name one that ssh-keygen made"
        raise ClusterError(f"{path} is no private key; {hint}", path=path) from None
    return path


def _read_or_make(path: Path, comment: str) -> KeyPair:
    try:
        public = asyncssh.read_private_key(path).export_public_key().decode()
        pair = KeyPair(private=path.read_text(), public=public)
    except FileNotFoundError:
        pair = make_key_pair(comment)
        write_atomic(path, pair.private, mode=0o600)
    except asyncssh.KeyImportError:
        raise ClusterError(
            f"{path} is damaged, so that the nodes made with it cannot be reached; remove them "
            f"with: drumline down",
            path=path,
        ) from None
    beside = path.with_name(path.name + ".pub")
    if not beside.is_file():
        beside.write_text(pair.public)
    return pair


_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


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


def host_key_alias(cluster: str, node: int) -> str:
    """Return the alias (HostKeyAlias) that a node's SSH host key is pinned under."""
    return f"drumline-{cluster}-worker{node}"


def read_pins(home: ClusterHome, node: int) -> list[Pin]:
    """Return the SSH host keys that are pinned for a node."""
    return _read_all(home).get(host_key_alias(home.name, node), [])


def write_pins(home: ClusterHome, node: int, pins: Iterable[Pin]) -> None:
    """Replace the SSH host keys that are pinned for a node; none forgets the node.

    The file is replaced as a whole, so that there is no moment at which a node has no pins.
    """
    home.make()
    everybody = {**_read_all(home), host_key_alias(home.name, node): pins}
    lines = [
        f"{name} {pin.key} {pin.origin}\n" for name in sorted(everybody) for pin in everybody[name]
    ]
    write_atomic(home.known_hosts, "".join(lines), mode=0o600)


def pin_host_key(home: ClusterHome, node: int, key: str, origin: Origin) -> None:
    """Pin a node's only SSH host key, given as a line of a public key."""
    write_pins(home, node, [Pin(key=plain_key(key), origin=origin)])


def find_host_keys(host: HostSpec) -> list[Pin]:
    """Return the SSH host keys to expect of a machine: the spec's, or those in known_hosts."""
    if host.host_key is not None:
        return [Pin(key=plain_key(host.host_key))]
    found: list[Pin] = []
    for name in _KNOWN:
        try:
            known = asyncssh.read_known_hosts(os.path.expanduser(name))
        except (OSError, ValueError, asyncssh.Error):
            continue
        keys, _, revoked = known.match(host.host, "", None if host.port == 22 else host.port)[:3]
        found += [
            Pin(key=plain_key(key.export_public_key().decode()))
            for key in keys
            if key not in revoked
        ]
    if not found:
        port = "" if host.port == 22 else f"-p {host.port} "
        raise ClusterError(
            f"the host key of {host.host} is not known, so that anybody could answer in its place; "
            f"get it with: ssh-keyscan -t ed25519 {port}{host.host} (check it on the machine "
            f"itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), and write it into "
            f"cluster.yaml as host_key: ssh-ed25519 …",
            host=host.host,
        )
    return list(dict.fromkeys(found))


def _read_all(home: ClusterHome) -> dict[str, list[Pin]]:
    found: dict[str, list[Pin]] = {}
    text = home.known_hosts.read_text() if home.known_hosts.exists() else ""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 3 and not line.startswith("#"):
            origin = fields[3] if fields[3:] and fields[3] in list(Origin) else Origin.GIVEN
            pin = Pin(key=f"{fields[1]} {fields[2]}", origin=Origin(origin))
            found.setdefault(fields[0], []).append(pin)
    return found
