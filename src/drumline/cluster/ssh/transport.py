"""`Way`: bytes to and from a node's SSH server, directly or through a machine's proxy command.

The probe for a banner and the connection after it take the same way. A proxy gets one end of a
socket pair as its input and output; what it complains about is kept, and told when the way fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Self

from drumline.cluster.machine import Machine
from drumline.cluster.ssh.remote import last_line
from drumline.core.errors import HostError

_TAIL = 2_000
_END_S = 2.0  # how long a proxy may take to end by itself


def host_error(machine: Machine, reason: str, message: str) -> HostError:
    """Return an error that names the node; `reason` is one word for programs."""
    return HostError(
        f"{machine.name} ({machine.host}): {message}",
        node=machine.node,
        host=machine.host,
        reason=reason,
    )


class Way:
    """An open way to a node. Use it in `async with`, or close it."""

    def __init__(self, machine: Machine, sock: socket.socket) -> None:
        self.machine = machine
        self.sock = sock
        self._proxy: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._complaint = b""

    @classmethod
    async def open(cls, machine: Machine, timeout_s: float) -> Self:
        """Open the way to a machine.

        Raises:
            HostError: there is none; `reason` is unreachable, refused or proxy.
        """
        if machine.proxy:
            return await cls._by_proxy(machine)
        try:
            async with asyncio.timeout(timeout_s):
                return cls(machine, await _connect(machine))
        except TimeoutError:
            raise host_error(
                machine,
                "unreachable",
                f"nothing answers at port {machine.port} within {timeout_s:.0f} s; check its "
                f"address, and that the firewall lets you in",
            ) from None
        except OSError as error:
            raise _told(machine, error) from None

    @classmethod
    async def _by_proxy(cls, machine: Machine) -> Self:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *machine.proxy,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us; its end comes with the way's
            )
        except BaseException as error:
            ours.close()
            if not isinstance(error, OSError):
                raise
            raise host_error(
                machine,
                "proxy",
                f"its proxy command {machine.proxy[0]!r} cannot be started: {error.strerror}",
            ) from None
        finally:
            theirs.close()
        ours.setblocking(False)
        way = cls(machine, ours)
        way._proxy = process
        way._reading = asyncio.create_task(way._listen(process))
        return way

    @property
    def proxied(self) -> bool:
        """Whether a proxy is in between."""
        return self._proxy is not None

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

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while said := await process.stderr.read(4096):
            self._complaint = (self._complaint + said)[-_TAIL:]
        await process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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


def _told(machine: Machine, error: OSError) -> HostError:
    if isinstance(error, socket.gaierror):
        return host_error(
            machine, "unreachable", f"its name has no address ({error.strerror}); check host"
        )
    if isinstance(error, ConnectionRefusedError):
        return host_error(
            machine,
            "refused",
            f"port {machine.port} is closed: it is still booting, or no SSH server runs there",
        )
    return host_error(
        machine,
        "unreachable",
        f"no way to port {machine.port} ({error.strerror or error}); check its address and your "
        f"network",
    )
