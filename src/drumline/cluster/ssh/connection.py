"""`Connection`: one persistent SSH connection to a node, for commands and port forwards.

    transport (socket or proxy) ──▶ key exchange ──▶ host key pinned? ──▶ authenticate ──▶ root?
                                         │ no: impostor             │ no: auth

The user's own SSH configuration is never read. Keepalive every five seconds; after three without an
answer the node is lost, and everything that waits for it fails with its name.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import posixpath
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Self

import asyncssh

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine
from drumline.cluster.ssh.config import ALIVE_COUNT, ALIVE_S
from drumline.cluster.ssh.keys import KEY, Pin, check_key, host_key_alias, read_pins
from drumline.cluster.ssh.remote import Done, host_error, last_line
from drumline.cluster.ssh.transport import Transport
from drumline.core.errors import ClusterError, HostError

_PIECE = 1 << 16
_TAIL = 1 << 16  # as much of the standard error is kept where the output is streamed


@functools.cache
def _hangup() -> str:
    """Return the source of `drumline.node.hangup` without its docstrings."""
    tree = ast.parse(files("drumline.node").joinpath("hangup.py").read_text())
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.FunctionDef) and ast.get_docstring(part):
            part.body = part.body[1:]
    return ast.unparse(tree)


class RemoteProcess:
    """A running command. It is ended when it is stopped, or when the connection ends.

    `error_for` makes the error for what went wrong: the connection knows why it was lost.
    """

    def __init__(
        self,
        process: asyncssh.SSHClientProcess[bytes],
        error_for: Callable[[str], HostError],
        release: Callable[[], None],
    ) -> None:
        self._process = process
        self._error_for = error_for
        self._stderr = bytearray()
        self._listening = asyncio.create_task(self._listen())
        self._closed = asyncio.create_task(process.wait_closed())
        self._closed.add_done_callback(lambda _: release())

    async def write(self, content: bytes) -> None:
        """Write to its standard input; waits while the node is slower than we are."""
        try:
            self._process.stdin.write(content)
            await self._process.stdin.drain()
        except (OSError, asyncssh.Error):
            await asyncio.wait([self._listening], timeout=1.0)
            said = last_line(self._stderr)
            what = "the command ended before it had read its input"
            raise self._error_for(f"{what}; it said: {said}" if said else what) from None

    async def end_input(self) -> None:
        """Close its standard input."""
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write_eof()

    async def read(self) -> bytes:
        """Read what its standard output has next; b"" at its end."""
        try:
            return await self._process.stdout.read(_PIECE)
        except (OSError, asyncssh.Error):
            raise self._error_for("the connection broke while a command ran") from None

    async def wait(self) -> Done:
        """Wait for its end; `stdout` is what nobody has read."""
        stdout = []
        while piece := await self.read():
            stdout.append(piece)
        await asyncio.wait([self._listening])
        await self._process.wait_closed()
        code = self._process.exit_status
        if self._process.exit_signal is not None:
            name = self._process.exit_signal[0]
            code = 128 + int(getattr(signal, f"SIG{name}", 0))
        if code is None:
            raise self._error_for("the connection broke while a command ran")
        return Done(code=code, stdout=b"".join(stdout), stderr=bytes(self._stderr))

    def stop(self) -> None:
        """End it: it gets SIGHUP."""
        self._process.close()

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while piece := await self._process.stderr.read(_PIECE):
                self._stderr += piece
                del self._stderr[:-_TAIL]


SIGN_IN_S = 20.0
_KINDS = [
    "ssh-ed25519",
    *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)),
    *(f"rsa-sha2-{bits}" for bits in (256, 512)),
]


class ClientEvents(asyncssh.SSHClient):
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


def _sign_in_options(machine: Machine, home: ClusterHome, pins: Sequence[Pin]) -> dict[str, Any]:
    """Return what asyncssh is told: our key, the pinned keys, and nothing of the user's own."""
    trusted = [asyncssh.import_public_key(pin.key) for pin in pins]
    # Pinned kinds first. The others are let come so far that an impostor's key can be told.
    kinds = [kind.decode() for key in trusted for kind in key.sig_algorithms]
    options: dict[str, Any] = {
        "config": None,
        "username": machine.user,
        "known_hosts": (trusted, [], []),
        "server_host_key_algs": list(dict.fromkeys([*kinds, *_KINDS])),
        "host_key_alias": host_key_alias(home.name, machine.node),
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


async def _why_refused(
    error: BaseException, client: ClientEvents, transport: Transport, pins: Sequence[Pin]
) -> HostError | None:
    """Say what a failed connection means; None for what is not ours to say."""
    machine = transport.machine
    refused = functools.partial(host_error, machine)
    if client.shown:
        pinned = " or ".join(asyncssh.import_public_key(p.key).get_fingerprint() for p in pins)
        return refused(
            "impostor",
            f"an impostor is refused: it shows the host key {client.shown}, but "
            f"{pinned} is pinned, so another machine answers there or someone is in between; "
            f"nothing was sent. If you have replaced the machine yourself: drumline down, then up",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        key = {None: "the cluster's key", "": "any key of your agent and ~/.ssh"}.get(
            machine.key_file, f"the key {machine.key_file}"
        )
        return refused(
            "auth",
            f"it refuses {machine.user} with {key}; check user and key_file, and that the key is "
            f"in its ~/.ssh/authorized_keys",
        )
    if isinstance(error, TimeoutError):
        return refused("silent", f"it does not let us in within {SIGN_IN_S:.0f} s, nor refuses")
    if isinstance(error, OSError | asyncssh.Error):
        proxy = f"; {await transport.proxy_end()}" if machine.proxy else ""
        return refused("lost", f"the connection broke while signing in ({error}){proxy}")
    return None


MAX_CHANNELS = 8
"""OpenSSH allows ten at once on a connection"""
CHANNEL_S = 60.0
"""how long a command waits for a free one"""
SESSION_S = 15.0
"""how long one that the server refuses is asked for again"""
_AGAIN_S = 0.1
_CLOSE_S = 3.0
_ASK = (
    'printf "drumline|%s|%s\\n" "$HOME" "$(python3 -IS -c '
    "'import sys; print(sys.version_info[:2] >= (3, 8))' 2>/dev/null)\""
)


@dataclass(eq=False)
class Connection:
    """A node, connected: the `Remote` that there is."""

    machine: Machine
    _ssh: asyncssh.SSHClientConnection
    _client: ClientEvents
    _transport: Transport

    def __post_init__(self) -> None:
        self._channels = asyncio.Semaphore(MAX_CHANNELS)

    @classmethod
    async def open(
        cls, machine: Machine, home: ClusterHome, *, pins: Sequence[Pin] | None = None
    ) -> Self:
        """Connect to a machine whose SSH server answers.

        `pins`: The keys that it may prove itself with; default: those of `known_hosts`.

        Raises:
            HostError: `reason` is impostor, auth, lost, silent, no-python, noise, unpinned, or one
                of those of `Transport.open`.
        """
        pins = read_pins(home, machine.node) if pins is None else pins
        if not pins:
            why = "no host key is pinned for it; make it again: drumline up"
            raise host_error(machine, "unpinned", why)
        options = _sign_in_options(machine, home, pins)
        transport = await Transport.open(machine, SIGN_IN_S)
        client = ClientEvents()
        try:
            async with asyncio.timeout(SIGN_IN_S):
                ssh = await asyncssh.connect(
                    machine.host,
                    machine.port,
                    sock=transport.sock,
                    client_factory=lambda: client,
                    **options,
                )
        except BaseException as error:
            told = await _why_refused(error, client, transport, pins)
            await transport.close()
            if told is None:
                raise
            raise told from None
        connection = cls(machine, ssh, client, transport)
        try:
            connection.machine = replace(machine, root=await connection._find_root())
        except BaseException:
            await connection.close()
            raise
        return connection

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
    ) -> Done:
        """Run a command to its end; a caller that is canceled ends it on the node, too."""
        process = await self.start(argv)
        feeding = asyncio.create_task(self._feed(process, given))
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError:
            what = f"{shlex.join(argv)[:80]} has not ended within {timeout_s:g} s"
            raise self._error(what, "timeout") from None
        finally:
            feeding.cancel()
            process.stop()

    async def start(self, argv: Sequence[str]) -> RemoteProcess:
        """Start a command; it gets a hang-up when it is stopped, or when the connection ends."""
        return await self._start(["python3", "-ISc", _hangup(), *argv])

    async def forward(self, port: int) -> int:
        """Make 127.0.0.1:port of the node reachable on a port of 127.0.0.1 here; returns that."""
        try:
            listener = await self._ssh.forward_local_port("127.0.0.1", 0, "127.0.0.1", port)
        except OSError as error:
            raise ClusterError(f"no port can be used: {error.strerror}; try again") from None
        except asyncssh.Error:
            raise self._error("no port can be forwarded") from None
        return listener.get_port()

    async def close(self) -> None:
        """End the connection, and all that runs through it."""
        self._ssh.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._ssh.wait_closed()
        except TimeoutError:  # it does not answer any more
            self._ssh.abort()
        await self._transport.close()

    @staticmethod
    async def _feed(process: RemoteProcess, given: bytes) -> None:
        with contextlib.suppress(HostError):  # a command may end without having read it
            if given:
                await process.write(given)
            await process.end_input()

    async def _start(self, argv: Sequence[str]) -> RemoteProcess:
        try:
            async with asyncio.timeout(CHANNEL_S):
                await self._channels.acquire()
        except TimeoutError:
            why = (
                f"{MAX_CHANNELS} commands run there already, and none has ended within "
                f"{CHANNEL_S:.0f} s"
            )
            raise self._error(why, "busy") from None
        try:
            process = await self._open_session("exec " + shlex.join(argv))
        except BaseException as error:
            self._channels.release()
            if isinstance(error, OSError | asyncssh.Error):
                raise self._error("the connection broke") from None
            raise
        return RemoteProcess(process, self._error, self._channels.release)

    async def _open_session(self, line: str) -> asyncssh.SSHClientProcess[bytes]:
        """Open a session; the server counts one that was just ended until its process is gone."""
        deadline = time.monotonic() + SESSION_S
        while True:
            try:
                return await self._ssh.create_process(line, encoding=None)
            except asyncssh.ChannelOpenError as error:
                if self._client.lost or time.monotonic() > deadline:
                    why = (
                        f"its SSH server opens no more sessions ({error.reason}); allow "
                        f"{MAX_CHANNELS + 2} with MaxSessions in its sshd_config"
                    )
                    raise self._error(why, "busy") from None
            await asyncio.sleep(_AGAIN_S)

    def _error(self, what: str, reason: str = "lost") -> HostError:
        if self._client.lost:
            what, reason = f"the connection is lost ({self._client.lost})", "lost"
        return host_error(self.machine, reason, what)

    async def _find_root(self) -> str:
        process = await self._start(["sh", "-c", _ASK])
        try:
            async with asyncio.timeout(SIGN_IN_S):
                await process.end_input()
                done = await process.wait()
        except TimeoutError:
            raise self._error("it lets us in, but runs no command", "silent") from None
        noise, found, facts = done.stdout.decode(errors="replace").rpartition("drumline|")
        if not found:
            said = done.stdout[:80] + done.stderr[:80]
            raise self._error(f"its shell runs no commands (it said {said!r})", "noise")
        if noise:
            raise self._error(
                f"its shell prints {noise[:40]!r} before each command, which garbles what is sent; "
                f"print only where there is a terminal (ask [ -t 1 ] in ~/.bashrc)",
                "noise",
            )
        folder, _, python = facts.rstrip("\n").rpartition("|")
        if python != "True":
            raise self._error("it has no python3 of 3.8 or newer; install one", "no-python")
        root = self.machine.root
        if root == "~":
            return folder
        return posixpath.join(folder, root.removeprefix("~/"))  # an absolute one stays as it is
