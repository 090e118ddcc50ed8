"""`RemoteProcess`: a command that runs on a node, with its standard streams."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import shlex
import signal
from collections.abc import Callable, Sequence
from importlib.resources import files

import asyncssh

from drumline.cluster.ssh.remote import Done, last_line
from drumline.core.errors import HostError

_PIECE = 1 << 16
_TAIL = 1 << 16  # as much of the standard error is kept where the output is streamed

Process = asyncssh.SSHClientProcess[bytes]
ErrorFor = Callable[[str], HostError]
"""makes the error for what went wrong; the connection knows its node, and why it was lost"""


@functools.cache
def _hangup() -> str:
    """Return the source of `drumline.node.hangup` without its docstrings."""
    tree = ast.parse(files("drumline.node").joinpath("hangup.py").read_text())
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.FunctionDef) and ast.get_docstring(part):
            part.body = part.body[1:]
    return ast.unparse(tree)


def command_line(argv: Sequence[str]) -> str:
    """Return the shell line that runs a command on a node over SSH, and ends it with us."""
    return "exec " + shlex.join(["python3", "-ISc", _hangup(), *argv])


class RemoteProcess:
    """A running command. It is ended when it is stopped, or when the connection ends."""

    def __init__(self, process: Process, error_for: ErrorFor, release: Callable[[], None]) -> None:
        self._process = process
        self._error_for = error_for
        self._stderr = bytearray()
        self._listening = asyncio.create_task(self._listen())
        self._closed = asyncio.create_task(self._give_back(release))
        self._given = False

    async def write(self, content: bytes) -> None:
        """Write to its standard input; waits while the node is slower than we are."""
        try:
            self._process.stdin.write(content)
            await self._process.stdin.drain()
        except (OSError, asyncssh.Error):
            await asyncio.wait([self._listening], timeout=1.0)
            said = last_line(self._stderr)
            ending = f"; it said: {said}" if said else ""
            raise self._error_for(
                f"the command ended before it had read its input{ending}"
            ) from None

    async def end_input(self) -> None:
        """Close its standard input."""
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write_eof()

    async def wait(self) -> Done:
        """Wait for its end; `stdout` is empty where `read` has given it."""
        stdout = []
        while piece := await self._read():
            stdout.append(piece)
        await asyncio.wait([self._listening])
        await self._process.wait_closed()
        code = self._process.exit_status
        if self._process.exit_signal is not None:
            name = self._process.exit_signal[0]
            code = 128 + int(getattr(signal, f"SIG{name}", 0))
        if code is None:
            raise self._error_for("the connection broke while a command ran")
        said = b"" if self._given else b"".join(stdout)
        return Done(code=code, stdout=said, stderr=bytes(self._stderr))

    def stop(self) -> None:
        """End it: it gets SIGHUP."""
        self._process.close()

    async def read(self) -> bytes:
        """Read what its standard output has next; b"" at its end."""
        self._given = True
        return await self._read()

    async def _read(self) -> bytes:
        try:
            return await self._process.stdout.read(_PIECE)
        except (OSError, asyncssh.Error):
            raise self._error_for("the connection broke while a command ran") from None

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while piece := await self._process.stderr.read(_PIECE):
                self._stderr += piece
                del self._stderr[:-_TAIL]

    async def _give_back(self, release: Callable[[], None]) -> None:
        try:
            await self._process.wait_closed()
        finally:
            release()
