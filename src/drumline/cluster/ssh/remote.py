"""`Remote`: what everything above SSH asks of a connection to a node (`connection.py` has it).

Commands are lists of words: nothing is read by a shell unless the words say so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from drumline.cluster.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""


class Flow(Protocol):
    """A command that runs on a node, with its input and output."""

    async def write(self, content: bytes) -> None:
        """Write to its standard input; waits while the node is slower than we are."""

    async def end_input(self) -> None:
        """Close its standard input."""

    def lines(self) -> AsyncIterator[bytes]:
        """Give the lines of its standard output as they come, without their ends."""

    async def wait(self) -> Done:
        """Wait for its end; `stdout` is empty where `lines` has given it."""

    def stop(self) -> None:
        """End it: hang up."""


class Remote(Protocol):
    """One node, connected. `machine.root` is an absolute path here."""

    @property
    def machine(self) -> Machine:
        """Which node."""

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
    ) -> Done:
        """Run a command to its end, with `given` as its input; never raises for its exit code.

        Raises:
            HostError: the connection is lost, or it takes longer than `timeout_s`.
        """

    async def start(self, argv: Sequence[str]) -> Flow:
        """Start a command; it gets a hang-up when the connection ends."""

    async def forward(self, port: int, *, local: int = 0) -> int:
        """Make 127.0.0.1:port of the node reachable as 127.0.0.1:local here; returns `local`.

        It lasts as long as the connection. `local` 0 takes a free one.
        """


def last_line(output: bytes | bytearray) -> str:
    """Return the last line that a command has printed, which mostly says why it ended."""
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def node_python(machine: Machine) -> str:
    """Return the Python of the node's environment."""
    return f"{machine.root}/env/bin/python"
