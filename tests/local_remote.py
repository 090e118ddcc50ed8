"""A `Remote` whose node is this machine: commands are processes here, their folder is the node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drumline.cluster.providers import Machine
from drumline.cluster.ssh.remote import Done
from drumline.core.errors import HostError

SOURCE = Path(__file__).parents[1] / "src"


@dataclass
class LocalProcess:
    process: asyncio.subprocess.Process
    name: str

    async def write(self, content: bytes) -> None:
        try:
            self.process.stdin.write(content)
            await self.process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise HostError(f"{self.name}: the command ended before it read its input") from None

    async def end_input(self) -> None:
        self.process.stdin.close()

    async def read(self) -> bytes:
        return await self.process.stdout.read(1 << 16)

    async def wait(self) -> Done:
        out, err = await self.process.communicate()
        return Done(code=self.process.returncode, stdout=out, stderr=err)

    def stop(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGHUP)


@dataclass
class LocalRemote:
    """One node; every command that it was given is kept."""

    machine: Machine
    enter: tuple[str, ...] = ()
    """what to put before a command: its network, its clock"""
    environment: dict[str, str] | None = None
    cut: bool = False
    commands: list[list[str]] = field(default_factory=list)

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
    ) -> Done:
        process = (await self._spawn(argv)).process
        try:
            out, err = await asyncio.wait_for(process.communicate(given), timeout_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise self._error(f"{argv[0]} took too long") from None
        return Done(code=process.returncode, stdout=out, stderr=err)

    async def start(self, argv: Sequence[str]) -> LocalProcess:
        return await self._spawn(argv)

    async def _spawn(self, argv: Sequence[str]) -> LocalProcess:
        if self.cut:
            raise self._error("cannot be reached")
        self.commands.append(list(argv))
        pipe = asyncio.subprocess.PIPE
        return LocalProcess(
            await asyncio.create_subprocess_exec(
                *(*self.enter, *argv),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=self.environment,
                limit=1 << 24,
                cwd="/",
                start_new_session=True,
            ),
            self.machine.name,
        )

    async def forward(self, port: int, *, local: int = 0) -> int:
        return port

    def _error(self, what: str) -> HostError:
        return HostError(f"{self.machine.name}: {what}", node=self.machine.node)


def local_node(root: Path, node: int = 0) -> LocalRemote:
    """Make a node in a folder; its environment is this Python, its package this checkout."""
    (root / "env" / "bin").mkdir(parents=True)
    python = root / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {sys.executable} "$@"\n')
    os.chmod(python, 0o755)
    return bare_node(root, node)


def bare_node(root: Path, node: int = 0) -> LocalRemote:
    """Make a node in a folder, with nothing in it."""
    machine = Machine(node=node, host="127.0.0.1", address="127.0.0.1", user="me", root=str(root))
    return LocalRemote(machine)
