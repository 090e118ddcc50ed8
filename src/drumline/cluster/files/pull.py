"""Pulling a job's results to this machine: what all nodes have, merged, and only new bytes.

    worker0: state.json  run/events/rank-0.jsonl  run/checkpoints/…  work/outputs/…  ┐
    worker1: state.json  run/events/rank-1.jsonl                                     ├─▶ jobs/<id>/
                                                                                     ┘
    a name that several nodes have is the leader's; another node's, where it differs, goes to
    nodes/worker1/<name>; a node that is gone keeps its place, or what it had left would be lost

A `FileFetcher` talks to `drumline.node.send` on each node. Files that only grow (logs, events)
resume where the last pull ended; others are written beside the old one and renamed when they are
complete. Each is checked against the checksum that the node sends. `.pulled.json` records what came
from where, with checksums; a file that the record does not match is fetched again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.cluster.ssh.remote import Flow, Remote, last_line, node_python, settled
from drumline.core.errors import ClusterError, HostError
from drumline.core.files import stays_inside, write_atomic
from drumline.node.job import ENDED

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


NOTE = ".pulled.json"
_LEADER = "worker0"
_LOGGED = ("run/events/", "run/logs/")
_RESULTS = ("run/", "work/")


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What one pull brought."""

    files: int = 0
    bytes: int = 0
    phase: str = ""
    """the job's, as the leader told before it listed its files"""
    silent: tuple[str, ...] = ()
    """what kept nodes from telling theirs"""

    @property
    def ended(self) -> bool:
        """Whether all of the job's files are here now."""
        return self.phase in ENDED


@dataclass
class Puller:
    """Pulls one job from all nodes, over one command on each, as often as it is asked to."""

    remotes: Sequence[Remote]
    job_id: str
    into: Path
    """the job's folder on this machine"""
    takers: dict[str, Taker] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)

    async def __aenter__(self) -> Puller:
        self.into.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError):
            self.note = json.loads((self.into / NOTE).read_text())
        return self

    async def __aexit__(self, *_: object) -> None:
        for taker in self.takers.values():
            taker.flow.stop()
        await asyncio.gather(*(t.flow.wait() for t in self.takers.values()), return_exceptions=True)
        self.takers.clear()

    async def pull(self, only: Callable[[str], bool] | None = None) -> Pulled:
        """Bring what is new. A node that does not answer does not keep the others' from coming.

        Args:
            only: says of a file's name below the job's folder whether to bring it; None: all.

        Raises:
            ClusterError: the leader has no such job, or no node answers.
        """
        silent = await self._all(self.remotes, self._list)
        if only is not None:
            for taker in self.takers.values():
                taker.listed = {name: each for name, each in taker.listed.items() if only(name)}
        answering = [r for r in self.remotes if r.machine.name in self.takers]
        owners = self._owners([remote.machine.name for remote in answering])
        silent += await self._all(answering, lambda r: self._take(r, owners, own=True))
        others = [r for r in answering if r.machine.name != _LEADER]
        silent += await self._all(others, lambda r: self._take(r, owners, own=False))
        write_atomic(self.into / NOTE, json.dumps(self.note))
        if len(silent) and not self.takers:
            raise ClusterError(f"no node answers: {'; '.join(silent)}")
        leader = self.takers.get(_LEADER)
        return Pulled(
            files=sum(taker.files for taker in self.takers.values()),
            bytes=sum(taker.size for taker in self.takers.values()),
            phase=leader.phase if leader else "",
            silent=tuple(silent),
        )

    async def watch(self, tell: Callable[[Pulled], None], *, every_s: float = 3.0) -> Pulled:
        """Pull every few seconds, until the job has ended and everything is here.

        Raises:
            HostError: the leader does not answer any more: nobody else knows of the end.
        """
        while True:
            pulled = await self.pull()
            tell(pulled)
            if pulled.ended:
                return pulled
            if _LEADER not in self.takers:
                raise HostError(
                    f"nobody tells when job {self.job_id} ends: {'; '.join(pulled.silent)}",
                    node=_LEADER,
                )
            await asyncio.sleep(every_s)

    def _owners(self, nodes: Sequence[str]) -> dict[str, str]:
        """Say whose copy of each file to take: the first node's, but the longest of what ranks log.

        Of other nodes' ranks, the leader has only what it needs to tell how the job ended.
        """
        owners: dict[str, str] = {}
        for node in nodes:
            for name, entry in self.takers[node].listed.items():
                other = owners.setdefault(name, self._former_owner(name, nodes) or node)
                theirs = self.takers[other].listed[name] if other in nodes else self.note[name]
                if name.startswith(_LOGGED) and _longer(entry, theirs):
                    owners[name] = node
        return owners

    def _former_owner(self, name: str, nodes: Sequence[str]) -> str | None:
        """Return the node that a result was pulled from, if it is not there any more."""
        node: str | None = self.note.get(name, {}).get("node")
        if node in nodes or not name.startswith(_RESULTS) or not (self.into / name).is_file():
            return None
        return node

    async def _list(self, remote: Remote) -> None:
        name = remote.machine.name
        if name not in self.takers:
            words = ["-m", "drumline.node.send", remote.machine.root, self.job_id]
            flow = await remote.start([node_python(remote.machine), *words])
            self.takers[name] = Taker(name=name, flow=flow, into=self.into, note=self.note)
        await self.takers[name].list_files(self.job_id)

    async def _take(self, remote: Remote, owners: dict[str, str], *, own: bool) -> None:
        taker = self.takers.get(remote.machine.name)
        if taker is None:
            return
        names = [name for name in taker.listed if (owners[name] == taker.name) == own]
        if own:
            await taker.take([Wanted(name=name, place=name) for name in names])
            return
        sums = {name: self.note.get(name, {}).get("sha256", "") for name in names}
        place = f"nodes/{taker.name}"
        await taker.take(
            [Wanted(name=name, place=f"{place}/{name}", unless=sums[name]) for name in names]
        )

    async def _all(self, remotes: Sequence[Remote], do: Any) -> list[str]:
        """Do something with all nodes at once; drops those that fail, and returns why."""
        results = await settled(do(r) for r in remotes)
        silent = []
        for remote, result in zip(remotes, results, strict=True):
            if isinstance(result, HostError | binascii.Error):
                silent.append(str(result))
                if taker := self.takers.pop(remote.machine.name, None):
                    taker.flow.stop()
            elif isinstance(result, OSError):
                raise ClusterError(
                    f"cannot write to {self.into}: {result.strerror}; make room there, pull again"
                ) from None
            elif isinstance(result, Exception):
                raise result
        return silent


def _longer(entry: dict[str, Any], other: dict[str, Any]) -> bool:
    return int(entry["bytes"]) > int(other["bytes"])
