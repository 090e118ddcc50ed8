"""A `Remote` whose node is this machine: commands are processes here, their folder is the node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from drumline.cluster.machine import Machine
from drumline.cluster.remote import Done
from drumline.core.errors import HostError

SOURCE = Path(__file__).parents[1] / "src"


@dataclass
class LocalFlow:
    process: asyncio.subprocess.Process

    async def write(self, content):
        self.process.stdin.write(content)
        await self.process.stdin.drain()

    async def end_input(self):
        self.process.stdin.close()

    async def lines(self):
        async for line in self.process.stdout:
            yield line.removesuffix(b"\n")

    async def wait(self):
        out, err = await self.process.communicate()
        return Done(code=self.process.returncode, stdout=out, stderr=err)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()


@dataclass
class LocalRemote:
    """One node; every command that it was given is kept."""

    machine: Machine
    commands: list[list[str]] = field(default_factory=list)

    async def run(self, argv, *, given=b"", timeout_s=None):
        process = await self._start(argv)
        try:
            out, err = await asyncio.wait_for(process.communicate(given), timeout_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise HostError(f"{self.machine.name}: {argv[0]} took too long") from None
        return Done(code=process.returncode, stdout=out, stderr=err)

    async def start(self, argv):
        return LocalFlow(await self._start(argv))

    async def forward(self, port, *, local=0):
        return port

    async def _start(self, argv):
        self.commands.append(list(argv))
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20, cwd="/"
        )


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
