"""`Connection`: one SSH connection to a node, kept, that commands and forwards go through.

    way (socket or proxy) ──▶ key exchange ──▶ its key is pinned? ──▶ sign in ──▶ where is root?
                                   │ no: impostor              │ no: auth

The user's own SSH configuration is never read. The node is asked for a sign of life every five
seconds; after three without one it is lost, and all that waits for it fails with its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Sequence
from typing import Self

import asyncssh

from drumline.cluster.ssh.process import Process, RemoteFlow, command_line
from drumline.cluster.home import ClusterHome
from drumline.cluster.machine import Machine
from drumline.cluster.ssh.remote import Done
from drumline.cluster.sign_in import SIGN_IN_S, Witness, sign_in_options, why_refused
from drumline.cluster.ssh.known_hosts import Pin, read_pins
from drumline.cluster.ssh.transport import Way, host_error
from drumline.core.errors import ClusterError, HostError

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


class Connection:
    """A node, connected: the `Remote` that there is."""

    def __init__(
        self, machine: Machine, ssh: asyncssh.SSHClientConnection, client: Witness, way: Way
    ) -> None:
        self._machine = machine
        self._ssh = ssh
        self._client = client
        self._way = way
        self._channels = asyncio.Semaphore(MAX_CHANNELS)

    @classmethod
    async def open(
        cls, machine: Machine, home: ClusterHome, *, pins: Sequence[Pin] | None = None
    ) -> Self:
        """Connect to a machine whose SSH server answers.

        Args:
            machine: Where it is.
            home: The cluster's folder, which has the key and the pins.
            pins: The keys that it may prove itself with; default: those of `known_hosts`.

        Raises:
            HostError: `reason` is impostor, auth, lost, silent, no-python, noise, unpinned, or one
                of those of `Way.open`.
        """
        if pins is None:
            pins = read_pins(home, machine.node)
        if not pins:
            raise host_error(
                machine, "unpinned", "no host key is pinned for it; make it again: drumline up"
            )
        options = sign_in_options(machine, home, pins)
        way = await Way.open(machine, SIGN_IN_S)
        client = Witness()
        try:
            async with asyncio.timeout(SIGN_IN_S):
                ssh = await asyncssh.connect(
                    machine.host,
                    machine.port,
                    sock=way.sock,
                    client_factory=lambda: client,
                    **options,
                )
        except BaseException as error:
            told = await why_refused(machine, error, client, way, pins)
            await way.close()
            if told is None:
                raise
            raise told from None
        connection = cls(machine, ssh, client, way)
        try:
            connection._machine = machine.at(root=await connection._find_root())
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def machine(self) -> Machine:
        """Which node; its root is absolute."""
        return self._machine

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
    ) -> Done:
        """Run a command to its end, with `given` as its input; never raises for its exit code.

        A caller that is canceled ends the command on the node, too.

        Raises:
            HostError: the connection is lost, or it takes longer than `timeout_s`.
        """
        flow = await self.start(argv)
        try:
            async with asyncio.timeout(timeout_s):
                feeding = asyncio.create_task(self._feed(flow, given))
                try:
                    return await flow.wait()
                finally:
                    feeding.cancel()
        except TimeoutError:
            raise self._trouble(
                f"{shlex.join(argv)[:80]} has not ended within {timeout_s:g} s", "timeout"
            ) from None
        finally:
            flow.stop()

    async def start(self, argv: Sequence[str]) -> RemoteFlow:
        """Start a command; it gets a hang-up when it is stopped, or when the connection ends.

        Raises:
            HostError: the connection is lost, or too many commands run.
        """
        return await self._start(command_line(argv))

    async def forward(self, port: int, *, local: int = 0) -> int:
        """Make 127.0.0.1:port of the node reachable as 127.0.0.1:local here; returns `local`.

        Raises:
            ClusterError: the local port is taken.
            HostError: the connection is lost.
        """
        try:
            listener = await self._ssh.forward_local_port("127.0.0.1", local, "127.0.0.1", port)
        except OSError as error:
            raise ClusterError(
                f"port {local} of this machine cannot be used: {error.strerror or error}; choose "
                f"another one, or 0 for any"
            ) from None
        except asyncssh.Error:
            raise self._trouble("no port can be forwarded") from None
        return listener.get_port()

    async def close(self) -> None:
        """End the connection, and all that runs through it."""
        self._ssh.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._ssh.wait_closed()
        except TimeoutError:  # it does not answer any more
            self._ssh.abort()
        await self._way.close()

    @staticmethod
    async def _feed(flow: RemoteFlow, given: bytes) -> None:
        with contextlib.suppress(HostError):  # a command may end without having read it
            if given:
                await flow.write(given)
            await flow.end_input()

    async def _start(self, line: str) -> RemoteFlow:
        try:
            async with asyncio.timeout(CHANNEL_S):
                await self._channels.acquire()
        except TimeoutError:
            raise self._trouble(
                f"{MAX_CHANNELS} commands run there already, and none has ended within "
                f"{CHANNEL_S:.0f} s",
                "busy",
            ) from None
        try:
            process = await self._open_session(line)
        except BaseException as error:
            self._channels.release()
            if isinstance(error, OSError | asyncssh.Error):
                raise self._trouble("the connection broke") from None
            raise
        return RemoteFlow(process, self._trouble, self._channels.release)

    async def _open_session(self, line: str) -> Process:
        """Open a session; the server counts one that was just ended until its process is gone."""
        deadline = time.monotonic() + SESSION_S
        while True:
            try:
                return await self._ssh.create_process(line, encoding=None)
            except asyncssh.ChannelOpenError as error:
                if self._client.lost or time.monotonic() > deadline:
                    raise self._trouble(
                        f"its SSH server opens no more sessions ({error.reason}); allow "
                        f"{MAX_CHANNELS + 2} with MaxSessions in its sshd_config",
                        "busy",
                    ) from None
            await asyncio.sleep(_AGAIN_S)

    def _trouble(self, what: str, reason: str = "lost") -> HostError:
        if self._client.lost:
            what, reason = f"the connection is lost ({self._client.lost})", "lost"
        return host_error(self._machine, reason, what)

    async def _find_root(self) -> str:
        flow = await self._start("exec " + shlex.join(["sh", "-c", _ASK]))
        try:
            async with asyncio.timeout(SIGN_IN_S):
                await flow.end_input()
                done = await flow.wait()
        except TimeoutError:
            raise self._trouble("it lets us in, but runs no command", "silent") from None
        noise, found, facts = done.stdout.decode(errors="replace").rpartition("drumline|")
        if not found:
            raise self._trouble(
                f"its shell runs no commands (it said {done.stdout[:80] + done.stderr[:80]!r})",
                "noise",
            )
        if noise:
            raise self._trouble(
                f"its shell prints {noise[:40]!r} before each command, which garbles what is sent; "
                f"print only where there is a terminal (ask [ -t 1 ] in ~/.bashrc)",
                "noise",
            )
        folder, _, python = facts.rstrip("\n").rpartition("|")
        if python != "True":
            raise self._trouble("it has no python3 of 3.8 or newer; install one", "no-python")
        root = self._machine.root
        if root == "~" or root.startswith("~/"):
            root = folder + root[1:]
        if not root.startswith("/"):
            root = f"{folder}/{root}"
        return root
