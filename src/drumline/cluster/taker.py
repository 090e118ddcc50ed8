"""`Taker`: takes one node's files of a job, by talking with `drumline.node.send` there.

Files that only grow go on where the last pull ended; others are written beside the old one and put
in its place when they are whole. Each is checked against the checksum that the node sends.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.cluster.ssh.remote import Flow, last_line
from drumline.core.errors import ClusterError, HostError
from drumline.core.inside import stays_inside

_ANSWER_S, _STOP_S = 120.0, 10.0
_AHEAD = 32  # questions that a node has not answered yet: they fit its input's buffer


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to fetch."""

    name: str
    """below the job's folder on the node"""
    place: str
    """below the job's folder here"""
    unless: str = ""
    """a checksum: a file that has it is here already"""


@dataclass
class Taker:
    """Takes one node's files of a job."""

    name: str
    flow: Flow
    into: Path
    note: dict[str, Any]
    """by place below `into`: node, bytes, mtime and sha256 of what was pulled"""
    files: int = 0
    size: int = 0
    phase: str = ""
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: AsyncIterator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.flow.lines()

    async def list_files(self, job_id: str) -> None:
        """Ask what there is."""
        self.listed, self.files, self.size = {}, 0, 0
        await self._ask({"list": True})
        while "listed" not in (answer := await self._answer()):
            name = answer["file"]
            if not stays_inside(name):
                raise HostError(
                    f"{self.name} names a file {name!r} outside its job; it is not to be trusted"
                )
            self.listed[name] = answer
        self.phase = answer["phase"]
        if not answer["there"] and self.name == "worker0":
            raise ClusterError(
                f"the cluster has no job {job_id!r}; drumline status lists the jobs", job=job_id
            )

    async def take(self, wanted: Sequence[Wanted]) -> None:
        """Fetch the files that are not here yet; some questions go ahead of their answers."""
        asked: deque[Wanted] = deque()
        for want in wanted:
            entry, known = self.listed[want.name], self._known(want.place)
            if known and (known["mtime"], known["bytes"]) == (entry["mtime"], entry["bytes"]):
                continue
            begun = {"offset": known["bytes"], "sha256": known["sha256"]} if known else {}
            await self._ask({"get": want.name, "unless": want.unless, **begun})
            asked.append(want)
            if len(asked) > _AHEAD:
                await self._take(asked.popleft())
        while asked:
            await self._take(asked.popleft())

    async def _take(self, want: Wanted) -> None:
        """Read the answer to one question, and put the file in its place."""
        answer = await self._answer()
        if "send" not in answer:  # it is gone, or the same as the leader's
            return
        entry, offset = self.listed[want.name], int(answer["offset"])
        path = self.into / want.place
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path if offset else path.with_name(f".{path.name}.part")
        digest, size = await self._receive(target, path, offset)
        if not offset:
            target.replace(path)
        os.utime(path, ns=(entry["mtime"], entry["mtime"]))
        self.note[want.place] = {
            "node": self.name,
            "bytes": size,
            "mtime": entry["mtime"] if size == entry["bytes"] else 0,  # it grew: look again
            "sha256": digest,
        }
        self.files += 1
        self.size += size - offset

    def _known(self, place: str) -> dict[str, Any] | None:
        """Return the note on a file, if it is this node's, and the file is as the note says."""
        known: dict[str, Any] | None = self.note.get(place)
        path = self.into / place
        if known is None or known["node"] != self.name or not path.is_file():
            return None
        size = path.stat().st_size
        if size > known["bytes"]:  # a pull that was cut short
            os.truncate(path, known["bytes"])
        return known if size >= known["bytes"] else None

    async def _receive(self, target: Path, path: Path, offset: int) -> tuple[str, int]:
        """Write what comes behind `offset`, and check the whole."""
        digest = hashlib.sha256()
        if offset:
            with path.open("rb") as old:
                digest = hashlib.file_digest(old, "sha256")
        size = offset
        with target.open("ab" if offset else "wb") as file:
            while not (line := await self._line()).startswith(b"{"):
                piece = base64.b64decode(line, validate=True)
                digest.update(piece)
                size += len(piece)
                file.write(piece)
        sent = json.loads(line)
        if "sent" not in sent or sent["sha256"] != digest.hexdigest():
            target.unlink()
            raise HostError(
                f"{self.name}: {path.name} did not arrive as it was sent "
                f"({sent.get('why', 'its checksum is another')}); pull again",
                node=self.name,
            )
        return digest.hexdigest(), size

    async def _ask(self, asked: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self.flow.write(json.dumps(asked).encode() + b"\n")
        except TimeoutError:
            raise self._silent() from None
        except OSError:
            raise await self._lost() from None

    async def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(await self._line())
        except ValueError:
            raise await self._lost() from None
        return answer

    async def _line(self) -> bytes:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await anext(self.lines)
        except StopAsyncIteration:
            raise await self._lost() from None
        except TimeoutError:
            raise self._silent() from None

    def _silent(self) -> HostError:
        return HostError(
            f"{self.name} has not answered for {_ANSWER_S:.0f} s; pull again", node=self.name
        )

    async def _lost(self) -> HostError:
        """Say why the node's side ended."""
        said = b""
        with contextlib.suppress(TimeoutError, HostError):
            said = (await asyncio.wait_for(self.flow.wait(), _STOP_S)).stderr
        why = last_line(said) or "the connection ended"
        return HostError(
            f"{self.name}: {why}, in the middle of a pull; pull again, it goes on where this one "
            f"ended",
            node=self.name,
        )
