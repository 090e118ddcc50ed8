"""Signing in to a node: what asyncssh is told, and what its failures mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncssh

from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.keys import KEY, check_key, fingerprint
from drumline.cluster.machine import Machine
from drumline.cluster.ssh.known_hosts import ALIVE_COUNT, ALIVE_S, Pin, alias
from drumline.cluster.ssh.transport import Way, host_error
from drumline.core.errors import HostError

SIGN_IN_S = 20.0
_KINDS = [
    "ssh-ed25519",
    *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)),
    *(f"rsa-sha2-{bits}" for bits in (256, 512)),
]


class Witness(asyncssh.SSHClient):
    """Remembers what asyncssh only tells once."""

    def __init__(self) -> None:
        self.shown = ""  # the host key that is not among the pinned ones
        self.lost = ""

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Refuse a key that is not pinned, and remember it."""
        self.shown = key.get_fingerprint()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember why."""
        self.lost = str(exc or "") or "the node closed the connection"


def sign_in_options(machine: Machine, home: ClusterHome, pins: Sequence[Pin]) -> dict[str, Any]:
    """Return what asyncssh is told: our key, the pinned keys, and nothing of the user's own."""
    trusted = [asyncssh.import_public_key(pin.key) for pin in pins]
    # Pinned kinds first. The others are let come so far that an impostor's key can be told.
    kinds = [kind.decode() for key in trusted for kind in key.sig_algorithms]
    options: dict[str, Any] = {
        "config": None,
        "username": machine.user,
        "known_hosts": (trusted, [], []),
        "server_host_key_algs": list(dict.fromkeys([*kinds, *_KINDS])),
        "host_key_alias": alias(home.name, machine.node),
        "x509_trusted_certs": None,
        "preferred_auth": ["publickey"],
        "gss_kex": False,
        "gss_auth": False,
        "keepalive_interval": ALIVE_S,
        "keepalive_count_max": ALIVE_COUNT,
        "login_timeout": SIGN_IN_S,
        "encryption_algs": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com",
        "compression_algs": ["none"],
    }
    if machine.key_file != "":
        key = check_key(machine.key_file or home.ssh / KEY)
        signed = key.with_name(key.name + "-cert.pub")
        options |= {
            "client_keys": [asyncssh.read_private_key(key)],
            "client_certs": [str(signed)] if signed.is_file() else [],
            "agent_path": None,
        }
    return options


async def why_refused(
    machine: Machine, error: BaseException, client: Witness, way: Way, pins: Sequence[Pin]
) -> HostError | None:
    """Say what a failed connection means; None for what is not ours to say."""
    if client.shown:
        pinned = " or ".join(fingerprint(pin.key) for pin in pins)
        return host_error(
            machine,
            "impostor",
            f"an impostor is refused: it shows the host key {client.shown}, but "
            f" {pinned} is pinned, so another machine answers there or someone is in between; "
            f"nothing was sent. If you have replaced the machine yourself: drumline down, then up",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        key = {None: "the cluster's key", "": "any key of your agent and ~/.ssh"}.get(
            machine.key_file, f"the key {machine.key_file}"
        )
        return host_error(
            machine,
            "auth",
            f"it refuses {machine.user} with {key}; check user and key_file, and that the key is "
            f"in its ~/.ssh/authorized_keys",
        )
    if isinstance(error, TimeoutError):
        return host_error(
            machine, "silent", f"it does not let us in within {SIGN_IN_S:.0f} s, nor refuses"
        )
    if isinstance(error, OSError | asyncssh.Error):
        proxy = f"; {await way.proxy_end()}" if way.proxied else ""
        return host_error(
            machine, "lost", f"the connection broke while signing in ({error}){proxy}"
        )
    return None
