"""Exchanging the host key that went through a cloud's user-data for one that only the node knows.

    1. the node makes a key beside the old one       pinned: old
    2. the laptop pins it, trusting the old one     pinned: old, new
    3. the node puts it in the old one's place, and its SSH server reads it
    4. a fresh connection proves it                  pinned: new

It can be cut short anywhere, and called again: a half-made key is used up, and as long as the new
one has not been seen, both are pinned.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.connection import Connection
from drumline.cluster.ssh.keys import Origin, Pin, forget_host_key, plain_key, read_pins, write_pins
from drumline.cluster.ssh.remote import Remote, host_error, last_line
from drumline.core.errors import ClusterError, HostError

_STEP_S = 60.0
_SEEN_S = 30.0
_AGAIN_S = 0.2
_RELOAD = "systemctl reload ssh || systemctl reload sshd || service ssh reload"


@dataclass(frozen=True, kw_only=True)
class HostKeyPlace:
    """Where a node's SSH server has its key, and how it is told to read it again."""

    path: str = "/etc/ssh/ssh_host_ed25519_key"
    reload: tuple[str, ...] = ("sh", "-c", _RELOAD)


async def rotate_host_key(
    remote: Remote, home: ClusterHome, place: HostKeyPlace | None = None
) -> bool:
    """Have a node make its own SSH host key, and pin it; returns whether that was necessary.

    Only keys that were injected are exchanged: those of machines that one owns stay as they are.

    Raises:
        HostError: it did not work; whatever the node shows now is among the pinned keys.
    """
    node = remote.machine.node
    pins = read_pins(home, node)
    injected = [pin.key for pin in pins if pin.origin is Origin.INJECTED]
    if not injected:
        return False
    place = place or HostKeyPlace()
    # (1) A new key that is in its place already counts, too.
    public = await _run(remote, place, "make a host key", "make", *injected)
    try:
        made = Pin(key=plain_key(public.decode()), origin=Origin.MADE_THERE)
    except ClusterError as error:
        raise host_error(remote.machine, "rotation", error.message) from None
    write_pins(home, node, [*(pin for pin in pins if pin.key != made.key), made])  # (2)
    await _run(remote, place, "put its new host key in place", "install", *place.reload)  # (3)
    await _see(remote, home, made)  # (4)
    write_pins(home, node, [made])
    forget_host_key(home, node)
    return True


async def _see(remote: Remote, home: ClusterHome, made: Pin) -> None:
    """Connect by the new key alone; the server may need a moment."""
    deadline = time.monotonic() + _SEEN_S
    while True:
        try:
            connection = await Connection.open(remote.machine, home, pins=[made])
        except HostError as error:
            if time.monotonic() > deadline:
                why = (
                    f"its SSH server does not show the new host key within {_SEEN_S:.0f} s "
                    f"({error.message}); both keys stay pinned, so try again: drumline up"
                )
                raise host_error(remote.machine, "rotation", why) from None
            await asyncio.sleep(_AGAIN_S)
        else:
            with contextlib.suppress(HostError):
                await connection.close()
            return


async def _run(remote: Remote, place: HostKeyPlace, what: str, step: str, *args: str) -> bytes:
    """Run a step of `rotation.sh` as whoever may write the key: the user itself, or root."""
    script = Path(__file__).with_name("rotation.sh").read_text()
    may = 'if [ -w "${5%/*}" ]; then exec "$@"; else exec sudo -n "$@"; fi'
    argv = ["sh", "-c", may, "sh", "sh", "-c", script, step, place.path, *args]
    done = await remote.run(argv, timeout_s=_STEP_S)
    if done.code:
        said = last_line(done.stderr or done.stdout) or f"exit code {done.code}"
        why = f"cannot {what}: {said}; its present key stays pinned"
        raise host_error(remote.machine, "rotation", why)
    return done.stdout
