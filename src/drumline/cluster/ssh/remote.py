"""Working with connected nodes: sessions with their modules, one operation on all at once.

Commands are argument lists: no shell interprets them unless the list starts one. An operation over
many nodes lets each node finish, then raises one error that holds all failures. Nothing here loads
asyncssh.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from drumline.core.errors import ERRORS, DrumlineError, HostError
from drumline.core.json_lines import HEADER, JsonLines, Message, encode, unpack_frame

if TYPE_CHECKING:
    from drumline.cluster.providers import Machine
    from drumline.cluster.ssh.connection import RemoteProcess

T = TypeVar("T")
Note = Callable[[str], None]
"""tells a person a line"""
_FINISH_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def complaint(self) -> str:
        """What it wrote to standard error."""
        return self.stderr.decode(errors="replace").strip()

    @property
    def last_complaint(self) -> str:
        """The last line of that, which mostly says why the command ended."""
        return last_line(self.stderr)

    @property
    def message(self) -> Message | None:
        """The JSON object that it printed last; None where that is something else."""
        try:
            message = json.loads(self.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            return None
        return message if isinstance(message, dict) else None


class Remote(Protocol):
    """One node, connected (`Connection`). `machine.root` is an absolute path here."""

    machine: Machine

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
    ) -> Done:
        """Run a command to its end, with `given` as its input; never raises for its exit code."""

    async def start(self, argv: Sequence[str]) -> RemoteProcess:
        """Start a command; it gets SIGHUP when the connection ends."""

    async def forward(self, port: int) -> int:
        """Make 127.0.0.1:port of the node reachable on a port of 127.0.0.1 here; returns that."""


def host_error(machine: Machine, reason: str, message: str) -> HostError:
    """Return an error of an SSH operation that names the node; `reason`: one word for programs."""
    return HostError(
        f"{machine.name} ({machine.host}): {message}",
        node=machine.node,
        host=machine.host,
        reason=reason,
    )


def last_line(output: bytes | bytearray) -> str:
    """Return the last line of an SSH command's output, which mostly says why the command ended."""
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def node_python(machine: Machine) -> str:
    """Return the path of the Python that SSH commands use on a node: its environment's."""
    return f"{machine.root}/env/bin/python"


def node_command(machine: Machine, module: str, *args: str) -> list[str]:
    """Return the command that runs a module of `drumline.node` on a node over SSH."""
    return [node_python(machine), "-m", f"drumline.node.{module}", machine.root, *args]


def revive(record: Message, where: str = "") -> DrumlineError:
    """Rebuild the error that a node sent over SSH (`DrumlineError.to_record`)."""
    return ERRORS.get(record["type"], DrumlineError)(f"{where}{record['message']}")


class NodeSession:
    """A running module of `drumline.node` that speaks JSON lines."""

    def __init__(self, machine: Machine, process: RemoteProcess) -> None:
        self.machine = machine
        self.process = process
        self._lines = JsonLines()

    @classmethod
    async def start_all(
        cls, remotes: Sequence[Remote], command: Callable[[Remote], Sequence[str]]
    ) -> list[NodeSession]:
        """Start a command on all nodes at once, in node order; where one cannot, on none."""
        results = await settled(remote.start(command(remote)) for remote in remotes)
        failures = [result for result in results if isinstance(result, Exception)]
        processes = [result for result in results if not isinstance(result, Exception)]
        if failures:
            for process in processes:
                process.stop()
            raise_for_all(failures)
        pairs = zip(remotes, processes, strict=True)
        return [cls(remote.machine, process) for remote, process in pairs]

    async def send(self, **fields: Any) -> None:
        """Send a message."""
        await self.process.write(encode(**fields))

    async def receive(self) -> Message | None:
        """Wait for the next message, past output that is none; None where it has ended."""
        while line := await self._line():
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    return message
        return None

    async def read_frames(self) -> AsyncIterator[bytes]:
        """Give the content of a file, frame by frame.

        Raises:
            EOFError: it has ended before the file was complete.
            ValueError, zlib.error: this is no frame.
        """
        while True:
            kind, length = HEADER.unpack(await self._exactly(HEADER.size))
            content = unpack_frame(kind, await self._exactly(length))
            if not length:
                return
            yield content

    async def finish(self, within_s: float = _FINISH_S) -> Done | None:
        """Close its input, and wait a while for its end; None where it does not come."""
        try:
            await self.process.end_input()
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.process.wait(), within_s)
        finally:
            self.process.stop()
        return None

    @staticmethod
    async def stop_all(sessions: Iterable[NodeSession], within_s: float = _FINISH_S) -> None:
        """End sessions by SIGHUP, and wait a while for their ends, however they end."""
        running = list(sessions)
        for session in running:
            session.process.stop()
        ends = (session.finish(within_s) for session in running)
        await asyncio.gather(*ends, return_exceptions=True)

    async def _line(self) -> bytes:
        """Return the next line; b"" at the end of its output."""
        while (line := self._lines.line()) is None or not line:
            if line is None and not await self._read():
                return self._lines.take(len(self._lines))
        return line

    async def _exactly(self, count: int) -> bytes:
        while len(self._lines) < count:
            if not await self._read():
                raise EOFError
        return self._lines.take(count)

    async def _read(self) -> bool:
        chunk = await self.process.read()
        self._lines.feed(chunk)
        return bool(chunk)


async def settled(works: Iterable[Awaitable[T]]) -> list[T | Exception]:
    """Run SSH operations on all nodes at once, each to its end; errors are among the results.

    A caller that is canceled cancels all of them, and waits for their ends.
    """

    async def finish(work: Awaitable[T]) -> T | Exception:
        try:
            return await work
        except Exception as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(finish(work)) for work in works]
    return [task.result() for task in tasks]


async def all_of(works: Iterable[Awaitable[T]]) -> list[T]:
    """Run SSH operations on all nodes at once, each to its end; returns their results in order.

    Raises:
        DrumlineError: what failed on one node, or one error for all the nodes that failed.
    """
    results = await settled(works)
    raise_for_all([result for result in results if isinstance(result, Exception)])
    return [result for result in results if not isinstance(result, Exception)]


def raise_for_all(failures: Sequence[Exception]) -> None:
    """Raise the error of SSH operations on nodes: the only one, or one for all that failed.

    That has the first one's fields, and `nodes` counts them.
    """
    told: dict[str, DrumlineError] = {}
    for failure in failures:
        if not isinstance(failure, DrumlineError):
            raise failure
        told.setdefault(failure.message, failure)
    if not told:
        return
    first = next(iter(told.values()))
    if len(told) == 1:
        raise first
    text = f"{len(failures)} nodes: " + "; ".join(told)
    raise HostError(text, **{**first.fields, "nodes": len(failures)})
