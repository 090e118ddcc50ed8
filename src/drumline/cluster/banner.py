"""Waiting for nodes to boot: asks each one's SSH port for its banner until it answers.

All nodes at once, each within the same time; a node that does not come is named with the reason:

    unreachable   no route, or nothing answers          may boot yet: tried again
    refused       the port is closed                    tried again
    silent        the port is open, and nothing comes   tried again
    busy          SSH answers, but takes nobody now     tried again
    proxy         the command on the way there ended    tried again
    not-ssh       something else answers                given up at once
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from drumline.cluster.machine import Machine
from drumline.cluster.provider import Say
from drumline.cluster.ssh.transport import Way, host_error
from drumline.core.errors import HostError

CONNECT_S = 5.0
BANNER_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
_MAX_BYTES = 16_384  # a server may say something before its banner, but not this much
_BUSY = (b"Exceeded MaxStartups", b"Not allowed at this time")
_GREETING = b"SSH-2.0-drumline_probe\r\n"


async def wait_for_banner(machine: Machine, *, timeout_s: float, say: Say) -> bytes:
    """Wait until a machine's SSH server answers; returns its banner.

    Raises:
        HostError: it does not within `timeout_s`, or something else than SSH does.
    """
    began = time.monotonic()
    pause_s, last = _FIRST_PAUSE_S, ""
    while True:
        left_s = timeout_s - (time.monotonic() - began)
        try:
            banner = await _try(machine, max(min(left_s, CONNECT_S), 0.1), left_s)
        except HostError as error:
            reason = str(error.fields["reason"])
            left_s = timeout_s - (time.monotonic() - began)
            if reason == "not-ssh" or left_s <= pause_s:
                waited = f" (waited {timeout_s:.0f} s)" if reason != "not-ssh" else ""
                raise HostError(error.message + waited, **error.fields) from None
            if reason != last:
                say(machine.name, f"waiting for SSH: {_WAITING[reason]}")
            last = reason
        else:
            say(machine.name, "SSH answers")
            return banner
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


_WAITING = {
    "unreachable": "nothing answers yet",
    "refused": "booting",
    "silent": "the port is open, nothing comes",
    "busy": "it takes nobody at the moment",
    "proxy": "no way through the proxy yet",
}


async def _try(machine: Machine, connect_s: float, left_s: float) -> bytes:
    async with await Way.open(machine, connect_s) as way:
        banner_s = max(min(left_s, BANNER_S), 0.1)
        text = b""
        try:
            async with asyncio.timeout(banner_s):
                text, banner = await _listen(way)
        except TimeoutError:
            raise host_error(
                machine,
                "silent",
                f"port {machine.port} is open, but no SSH banner comes within {banner_s:.0f} s; "
                f"the machine hangs, or something else listens there",
            ) from None
        if banner:
            return banner
        raise await _no_banner(way, text)


async def _listen(way: Way) -> tuple[bytes, bytes]:
    """Return all that came before a banner, and the banner; b"" where there was none."""
    loop = asyncio.get_running_loop()
    text = b""
    with contextlib.suppress(ConnectionError):
        # Servers of other protocols wait for a word, and say by their answer what they are
        await loop.sock_sendall(way.sock, _GREETING)
        while len(text) < _MAX_BYTES and (piece := await loop.sock_recv(way.sock, 4096)):
            text += piece
            for line in text.split(b"\n")[:-1]:
                if line.startswith((b"SSH-2.0-", b"SSH-1.99-")):
                    return text, line.rstrip(b"\r")
    return text, b""


async def _no_banner(way: Way, text: bytes) -> HostError:
    machine = way.machine
    if any(word in text for word in _BUSY):
        said = text.decode(errors="replace").strip()
        return host_error(machine, "busy", f"its SSH server refuses new connections ({said})")
    if text:
        said = text[:40].decode(errors="replace").split("\n")[0].strip()
        return host_error(
            machine,
            "not-ssh",
            f"something else than SSH answers at port {machine.port} ({said!r}); check host and "
            f"port",
        )
    if way.proxied:
        return host_error(machine, "proxy", f"{await way.proxy_end()}; check that it runs by hand")
    return host_error(
        machine,
        "refused",
        f"port {machine.port} hangs up without a word: it is still booting, or blocks your address",
    )
