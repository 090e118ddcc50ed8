"""`Transport`: bytes to and from a node's SSH server, directly or through a proxy command.

The banner probe and the connection after it use the same transport. A proxy gets one end of a
socket pair as its standard input and output; its standard error is kept for error messages.

`wait_for_banner` polls until a booting node's SSH server answers, with exponential backoff:

    unreachable   no route, or nothing answers          may boot yet: retried
    refused       the port is closed                    retried
    silent        the port is open, and nothing comes   retried
    busy          SSH answers, but takes nobody now     retried
    proxy         the proxy command ended               retried
    not-ssh       something else answers                fails at once
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import time
from asyncio.subprocess import Process
from typing import Self

from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.ssh.remote import host_error, last_line
from drumline.core.errors import HostError

_TAIL = 2_000
_END_S = 2.0  # how long a proxy may take to end by itself


class Transport:
    """An open transport to a node; whoever has opened it closes it."""

    def __init__(self, machine: Machine, sock: socket.socket, proxy: Process | None = None) -> None:
        self.machine = machine
        self.sock = sock
        self._proxy = proxy
        self._complaint = b""
        self._reading = None if proxy is None else asyncio.create_task(self._listen(proxy))

    @classmethod
    async def open(cls, machine: Machine, timeout_s: float) -> Self:
        """Open the transport to a machine.

        Raises:
            HostError: there is none; `reason` is unreachable, refused or proxy.
        """
        if machine.proxy:
            return await cls._by_proxy(machine)
        reason = "unreachable"
        try:
            async with asyncio.timeout(timeout_s):
                return cls(machine, await _connect(machine))
        except TimeoutError:
            why = (
                f"nothing answers at port {machine.port} within {timeout_s:.0f} s; check its "
                f"address, and that the firewall lets you in"
            )
        except socket.gaierror as error:
            why = f"its name has no address ({error.strerror}); check host"
        except ConnectionRefusedError:
            reason = "refused"
            why = f"port {machine.port} is closed: it is still booting, or no SSH server runs there"
        except OSError as error:
            why = (
                f"no way to port {machine.port} ({error.strerror or error}); check its address and "
                f"your network"
            )
        raise host_error(machine, reason, why)

    @classmethod
    async def _by_proxy(cls, machine: Machine) -> Self:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *machine.proxy,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us; its end comes with the transport's
            )
        except BaseException as error:
            ours.close()
            if not isinstance(error, OSError):
                raise
            why = f"its proxy command {machine.proxy[0]!r} cannot be started: {error.strerror}"
            raise host_error(machine, "proxy", why) from None
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(machine, ours, process)

    async def proxy_end(self) -> str:
        """Say how the proxy ended; waits a moment for it, since its output ends before it does."""
        if self._proxy is None or self._reading is None:
            return ""
        await asyncio.wait([self._reading], timeout=_END_S)
        code = self._proxy.returncode
        said = last_line(self._complaint)
        ended = "is still running" if code is None else f"ended with code {code}"
        return f"its proxy command {ended}" + (f" and said: {said}" if said else "")

    async def close(self) -> None:
        """Close it, and end the proxy."""
        self.sock.close()
        if self._proxy is not None and self._reading is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._proxy.wait()), _END_S)
            with contextlib.suppress(ProcessLookupError):
                if self._proxy.returncode is None:
                    self._proxy.kill()
            await self._proxy.wait()
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _listen(self, process: Process) -> None:
        assert process.stderr is not None
        while said := await process.stderr.read(4096):
            self._complaint = (self._complaint + said)[-_TAIL:]
        await process.wait()


async def _connect(machine: Machine) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(machine.host, machine.port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failure = failure or error
        else:
            return sock
    raise failure or OSError(errno.EHOSTUNREACH, "the name has no address")


CONNECT_S = 5.0
BANNER_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
_MAX_BYTES = 16_384  # a server may say something before its banner, but not this much
_BUSY = (b"Exceeded MaxStartups", b"Not allowed at this time")
_GREETING = b"SSH-2.0-drumline_probe\r\n"
_BANNER = re.compile(rb"^SSH-(2\.0|1\.99)-.*\n", re.MULTILINE)


async def wait_for_banner(machine: Machine, *, timeout_s: float, report: Reporter) -> None:
    """Wait until a machine's SSH server answers with its banner."""
    deadline = time.monotonic() + timeout_s
    pause_s, last = _FIRST_PAUSE_S, ""
    while True:
        try:
            await _try(machine, deadline - time.monotonic())
        except HostError as error:
            reason = str(error.fields["reason"])
            if reason == "not-ssh" or deadline - time.monotonic() <= pause_s:
                waited = f" (waited {timeout_s:.0f} s)" if reason != "not-ssh" else ""
                raise HostError(error.message + waited, **error.fields) from None
            if reason != last:
                report(machine.name, f"waiting for SSH: {_WAITING[reason]}")
            last = reason
        else:
            report(machine.name, "SSH answers")
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


_WAITING = {
    "unreachable": "nothing answers yet",
    "refused": "booting",
    "silent": "the port is open, nothing comes",
    "busy": "it takes nobody at the moment",
    "proxy": "no way through the proxy yet",
}


async def _try(machine: Machine, left_s: float) -> None:
    transport = await Transport.open(machine, max(min(left_s, CONNECT_S), 0.1))
    banner_s = max(min(left_s, BANNER_S), 0.1)
    try:
        async with asyncio.timeout(banner_s):
            text = await _listen(transport)
        if _BANNER.search(text):
            return
        reason, why = await _no_banner(transport, text)
    except TimeoutError:
        reason = "silent"
        why = (
            f"port {machine.port} is open, but no SSH banner comes within {banner_s:.0f} s; "
            f"the machine hangs, or something else listens there"
        )
    finally:
        await transport.close()
    raise host_error(machine, reason, why)


async def _listen(transport: Transport) -> bytes:
    """Return what comes, up to the banner of an SSH server."""
    loop = asyncio.get_running_loop()
    text = b""
    with contextlib.suppress(ConnectionError):
        # Servers of other protocols wait for a word, and say by their answer what they are
        await loop.sock_sendall(transport.sock, _GREETING)
        while len(text) < _MAX_BYTES and (piece := await loop.sock_recv(transport.sock, 4096)):
            text += piece
            if _BANNER.search(text):
                break
    return text


async def _no_banner(transport: Transport, text: bytes) -> tuple[str, str]:
    """Return the reason, and what to say."""
    port = transport.machine.port
    if any(phrase in text for phrase in _BUSY):
        said = text.decode(errors="replace").strip()
        return "busy", f"its SSH server refuses new connections ({said})"
    if text:
        said = text[:40].decode(errors="replace").partition("\n")[0].strip()
        what = f"something else than SSH answers at port {port} ({said!r}); check host and port"
        return "not-ssh", what
    if transport.machine.proxy:
        return "proxy", f"{await transport.proxy_end()}; check that it runs by hand"
    what = f"port {port} hangs up without a word: it is still booting, or blocks your address"
    return "refused", what
