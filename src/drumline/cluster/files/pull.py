"""Pulling a job's results to this machine: what all nodes have, together, and only new bytes.

    worker0: state.json  run/events/rank-0.jsonl  run/checkpoints/…  work/outputs/…  ┐
    worker1: state.json  run/events/rank-1.jsonl                                     ├─▶ jobs/<id>/
                                                                                     ┘
    a name that several nodes have is the leader's; another node's, where it differs, goes to
    nodes/worker1/<name>; a node that is gone keeps its place, or what it had left would be lost

Files that only grow (logs, events) go on where the last pull ended. `.pulled.json` notes what has
come from where, with checksums; a file that the note does not fit is fetched anew.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.cluster.ssh.remote import Remote, node_python
from drumline.cluster.taker import Taker, Wanted
from drumline.cluster.together import settled
from drumline.core.errors import ClusterError, HostError
from drumline.core.rundir import write_atomic
from drumline.node.job import ENDED

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
