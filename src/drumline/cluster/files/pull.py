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
import contextlib
import hashlib
import json
import os
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from drumline.cluster.ssh.remote import NodeSession, Remote, node_command, settled
from drumline.core.errors import ClusterError, HostError
from drumline.core.files import stays_inside, write_atomic
from drumline.core.json_lines import Message
from drumline.node.job import ENDED
from drumline.node.send import ListedFile

T = TypeVar("T")
NOTE = ".pulled.json"
_ANSWER_S, _STOP_S = 120.0, 10.0
_AHEAD = 32  # requests that a node has not answered yet: they fit its input's buffer
_LEADER = "worker0"
LOGGED = ("run/events/", "run/logs/")
"""where files only grow"""
_RESULTS = ("run/", "work/")


@dataclass(frozen=True, kw_only=True)
class PulledFile:
    """A file that is here."""

    node: str
    """where it came from"""
    bytes: int
    mtime: int
    """in nanoseconds; 0: it grew while it was sent"""
    sha256: str


@dataclass
class FileFetcher:
    """Fetches one node's files of a job."""

    session: NodeSession
    into: Path
    pulled: dict[str, PulledFile]
    """what is here already, by place below `into`"""
    files: int = 0
    size: int = 0
    phase: str = ""
    listed: dict[str, ListedFile] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's."""
        return self.session.machine.name

    async def list_files(self, job_id: str) -> None:
        """Ask what there is."""
        self.listed, self.files, self.size = {}, 0, 0
        await self._within(self.session.send(list=True))
        while "listed" not in (answer := await self._answer()):
            found = ListedFile(**answer)
            if not stays_inside(found.file):
                raise self._error(
                    f" names a file {found.file!r} outside its job; it is not to be trusted"
                )
            self.listed[found.file] = found
        self.phase = answer["phase"]
        if not answer["there"] and self.name == _LEADER:
            raise ClusterError(
                f"the cluster has no job {job_id!r}; drumline status lists the jobs", job=job_id
            )

    async def fetch(self, owners: Mapping[str, str], *, own: bool) -> None:
        """Fetch the files that are not here yet; requests are pipelined.

        `owners`: the node that each name is taken from.
        `own`: whether to fetch what is this node's; else what differs from its owner's.
        """
        folder = "" if own else f"nodes/{self.name}/"
        asked: deque[str] = deque()
        for name, listed in self.listed.items():
            if (owners[name] == self.name) != own:
                continue
            known = self._known(folder + name)
            if known and (known.mtime, known.bytes) == (listed.mtime, listed.bytes):
                continue
            begun = {"offset": known.bytes, "sha256": known.sha256} if known else {}
            other = None if own else self.pulled.get(name)
            unless = other.sha256 if other else ""
            await self._within(self.session.send(get=name, unless=unless, **begun))
            asked.append(name)
            if len(asked) > _AHEAD:
                await self._take(asked.popleft(), folder)
        while asked:
            await self._take(asked.popleft(), folder)

    async def _take(self, name: str, folder: str) -> None:
        """Read the answer to one request, and put the file in its place."""
        answer = await self._answer()
        if "send" not in answer:  # it is gone, or the same as the leader's
            return
        listed, offset, place = self.listed[name], int(answer["offset"]), folder + name
        path = self.into / place
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path if offset else path.with_name(f".{path.name}.part")
        digest, size = await self._receive(target, path, offset)
        if not offset:
            target.replace(path)
        os.utime(path, ns=(listed.mtime, listed.mtime))
        mtime = listed.mtime if size == listed.bytes else 0  # it grew: look again
        self.pulled[place] = PulledFile(node=self.name, bytes=size, mtime=mtime, sha256=digest)
        self.files += 1
        self.size += size - offset

    def _known(self, place: str) -> PulledFile | None:
        """Return what was recorded of a file, if it came from this node, and still matches."""
        known = self.pulled.get(place)
        path = self.into / place
        if known is None or known.node != self.name or not path.is_file():
            return None
        size = path.stat().st_size
        if size > known.bytes:  # a pull that was interrupted
            os.truncate(path, known.bytes)
        return known if size >= known.bytes else None

    async def _receive(self, target: Path, path: Path, offset: int) -> tuple[str, int]:
        """Write what comes after `offset`, and check the whole."""
        digest = hashlib.sha256()
        if offset:
            with path.open("rb") as old:
                digest = hashlib.file_digest(old, "sha256")
        size = offset
        frames = self.session.read_frames()
        with target.open("ab" if offset else "wb") as file:
            while piece := await self._within(anext(frames, b"")):
                digest.update(piece)
                size += len(piece)
                file.write(piece)
        sent = await self._answer()
        if "sent" not in sent or sent["sha256"] != digest.hexdigest():
            target.unlink()
            why = sent.get("why", "its checksum is another")
            raise self._error(f": {path.name} did not arrive as it was sent ({why}); pull again")
        return digest.hexdigest(), size

    async def _answer(self) -> Message:
        answer = await self._within(self.session.receive())
        if answer is None:
            raise await self._lost()
        return answer

    async def _within(self, work: Awaitable[T]) -> T:
        """Bound a step of the exchange in time, and name the node where it fails."""
        try:
            return await asyncio.wait_for(work, _ANSWER_S)
        except TimeoutError:
            raise self._error(f" has not answered for {_ANSWER_S:.0f} s; pull again") from None
        except (OSError, EOFError):
            raise await self._lost() from None
        except (ValueError, zlib.error) as error:
            raise self._error(
                f" sends what cannot be read ({error}); bring this version of drumline there with "
                f"drumline up, then pull again"
            ) from None

    async def _lost(self) -> HostError:
        """Say why the node's side ended."""
        said = ""
        with contextlib.suppress(TimeoutError, HostError):
            said = (await asyncio.wait_for(self.session.process.wait(), _STOP_S)).last_complaint
        why = said or "the connection ended"
        return self._error(
            f": {why}, in the middle of a pull; pull again, it goes on where this one ended"
        )

    def _error(self, text: str) -> HostError:
        """Name the node in front of a text, which begins with what goes between."""
        return HostError(f"{self.name}{text}", node=self.name)


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

    @property
    def state(self) -> str:
        """The job's phase, for people."""
        return self.phase or "no word from its leader"


@dataclass
class Puller:
    """Pulls one job from all nodes, over one command on each, as often as it is asked to."""

    remotes: Sequence[Remote]
    job_id: str
    into: Path
    """the job's folder on this machine"""
    fetchers: dict[str, FileFetcher] = field(default_factory=dict)
    pulled: dict[str, PulledFile] = field(default_factory=dict)

    async def __aenter__(self) -> Puller:
        self.into.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            noted = json.loads((self.into / NOTE).read_text())
            self.pulled = {place: PulledFile(**values) for place, values in noted.items()}
        return self

    async def __aexit__(self, *_: object) -> None:
        await NodeSession.stop_all(fetcher.session for fetcher in self.fetchers.values())
        self.fetchers.clear()

    async def pull(self, only: Callable[[str], bool] | None = None) -> Pulled:
        """Bring what is new. A node that does not answer does not keep the others' from coming.

        `only`: says of a file's name below the job's folder whether to bring it; None: all.
        """
        silent = await self._all(self._list)
        if only is not None:
            for fetcher in self.fetchers.values():
                fetcher.listed = {name: each for name, each in fetcher.listed.items() if only(name)}
        owners = self._owners()
        silent += await self._all(lambda remote: self._take(remote, owners, own=True))
        silent += await self._all(lambda remote: self._take(remote, owners, own=False))
        noted = {place: asdict(file) for place, file in self.pulled.items()}
        write_atomic(self.into / NOTE, json.dumps(noted))
        if silent and not self.fetchers:
            raise ClusterError(f"no node answers: {'; '.join(silent)}")
        leader = self.fetchers.get(_LEADER)
        return Pulled(
            files=sum(fetcher.files for fetcher in self.fetchers.values()),
            bytes=sum(fetcher.size for fetcher in self.fetchers.values()),
            phase=leader.phase if leader else "",
            silent=tuple(silent),
        )

    async def watch(self, on_pull: Callable[[Pulled], None], *, every_s: float = 3.0) -> Pulled:
        """Pull every few seconds, until the job has ended and everything is here."""
        while True:
            pulled = await self.pull()
            on_pull(pulled)
            if pulled.ended:
                return pulled
            if _LEADER not in self.fetchers:
                why = "; ".join(pulled.silent)
                raise HostError(f"nobody tells when job {self.job_id} ends: {why}", node=_LEADER)
            await asyncio.sleep(every_s)

    def _owners(self) -> dict[str, str]:
        """Say whose copy of each file to take: the first node's, but the longest of what ranks log.

        Of other nodes' ranks, the leader has only what it needs to tell how the job ended.
        """
        nodes = [r.machine.name for r in self.remotes if r.machine.name in self.fetchers]
        owners = {  # results of nodes that are not there any more
            name: file.node
            for name, file in self.pulled.items()
            if file.node not in nodes and name.startswith(_RESULTS) and (self.into / name).is_file()
        }
        for node in nodes:
            for name, entry in self.fetchers[node].listed.items():
                other = owners.setdefault(name, node)
                theirs = self.fetchers[other].listed[name] if other in nodes else self.pulled[name]
                if name.startswith(LOGGED) and entry.bytes > theirs.bytes:
                    owners[name] = node
        return owners

    async def _list(self, remote: Remote) -> None:
        name = remote.machine.name
        if name not in self.fetchers:
            process = await remote.start(node_command(remote.machine, "send", self.job_id))
            session = NodeSession(remote.machine, process)
            self.fetchers[name] = FileFetcher(session=session, into=self.into, pulled=self.pulled)
        await self.fetchers[name].list_files(self.job_id)

    async def _take(self, remote: Remote, owners: dict[str, str], *, own: bool) -> None:
        fetcher = self.fetchers.get(remote.machine.name)
        if fetcher is not None and (own or fetcher.name != _LEADER):
            await fetcher.fetch(owners, own=own)

    async def _all(self, do: Callable[[Remote], Awaitable[None]]) -> list[str]:
        """Do something with all nodes at once; drops those that fail, and returns why."""
        results = await settled(map(do, self.remotes))
        silent = []
        for remote, result in zip(self.remotes, results, strict=True):
            if isinstance(result, HostError):
                silent.append(str(result))
                if fetcher := self.fetchers.pop(remote.machine.name, None):
                    fetcher.session.process.stop()
            elif isinstance(result, OSError):
                raise ClusterError(
                    f"cannot write to {self.into}: {result.strerror}; make room there, pull again"
                ) from None
            elif isinstance(result, Exception):
                raise result
        return silent
