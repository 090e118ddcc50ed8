"""Sync of the project's folder to all nodes at once: only what is missing there travels.

The nodes scan what they have while the laptop scans its own folder; where both come to the same
hash, nothing else is sent. `drumline.node.receive` draws the exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.cluster.files.manifest import FolderManifest, scan_project
from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.ssh.remote import NodeSession, Remote, all_of, host_error, last_line
from drumline.core.errors import HostError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.core.json_lines import FRAME_BYTES, Message, pack_frames
from drumline.node.folder import Entry

ROUNDS = 3
"""so often a folder that changes meanwhile is looked at again"""
_ANSWER_S, _WRITE_S, _END_S = 900.0, 300.0, 20.0  # a node may have many files to scan
_STALLED = "stalled"
_SMALL, _KEPT = 1 << 16, 1 << 26


@dataclass(frozen=True, kw_only=True)
class Synced:
    """What came to one node."""

    node: int
    hash: str
    """of the folder's content, the same on all nodes"""
    files: int
    """in the folder"""
    sent: int = 0
    """of them were missing there"""
    sent_bytes: int = 0
    """of their content, before it was compressed"""
    removed: int = 0


async def sync_folder(
    remotes: Sequence[Remote],
    folder: Path,
    home: ClusterHome,
    *,
    report: Reporter,
    apart: Path | None = None,
) -> list[Synced]:
    """Sync the project's folder to R/code of all nodes; `push_package` must have been called.

    `apart`: a folder that stays here: the storage, into which nodes may be writing.

    Raises:
        UsageError: the folder cannot be sent; the nodes are as they were.
        HostError: a node is lost, or cannot take it; the others are as they were, or finished.
    """
    sync = _Sync(folder, home.sync, report, apart, _Packer())
    for number in range(ROUNDS):
        results, changed = await sync.round(remotes)
        if not changed:
            return results
        report("sync", f"{changed[0]} changed meanwhile; looking again ({number + 1})")
    raise UsageError(
        f"{changed[0]} keeps changing while it is sent; wait until that has ended, or write it "
        f"into .drumlineignore"
    )


@dataclass(frozen=True)
class _Sync:
    """One folder on its way to several nodes."""

    folder: Path
    cache: Path
    report: Reporter
    apart: Path | None
    packer: _Packer

    async def round(self, remotes: Sequence[Remote]) -> tuple[list[Synced], list[str]]:
        """Scan once, and send it to all; returns the files that have changed meanwhile."""
        sessions = await NodeSession.start_all(remotes, _command)
        try:
            manifest = await asyncio.to_thread(scan_project, self.folder, self.cache, self.apart)
            for note in manifest.notes:
                self.report("sync", note)
            results = await all_of(self._one(session, manifest) for session in sessions)
        finally:
            for session in sessions:
                session.process.stop()
            ends = (session.finish(_END_S) for session in sessions)
            await asyncio.gather(*ends, return_exceptions=True)
        changed = sorted({path for _, paths in results for path in paths})
        return [synced for synced, _ in results], changed

    async def _one(
        self, session: NodeSession, manifest: FolderManifest
    ) -> tuple[Synced, list[str]]:
        machine, entries = session.machine, manifest.entries
        synced = Synced(node=machine.node, hash=manifest.hash, files=len(entries))
        await _within(session, session.send(hash=manifest.hash))
        if (await _answer(session)).get("same"):
            await session.finish(_END_S)
            return synced, []
        packed = await asyncio.to_thread(lambda: manifest.compressed)
        await _within(session, session.send(manifest=len(packed)))
        await _within(session, session.process.write(packed))
        wanted = [entries[number] for number in (await _answer(session))["want"]]
        size = sum(entry.size for entry in wanted)
        if wanted:
            files = counted(len(wanted), "file")
            self.report(machine.name, f"{files} to send ({format_bytes(size)})")
        blocks = self.packer.blocks(manifest.root, wanted)
        try:
            while block := await asyncio.to_thread(next, blocks, b""):
                await _within(session, session.process.write(block))
        except HostError as error:
            if error.fields.get("reason") != _STALLED:
                await _answer(session)  # it may have said why it takes no more
            raise
        await session.process.end_input()
        answer = await _answer(session)
        changed = [entries[number].path for number in answer.get("changed", ())]
        await session.finish(_END_S)
        removed = answer.get("removed", 0)
        return replace(synced, sent=len(wanted), sent_bytes=size, removed=removed), changed


class _Packer:
    """Files as frames. Those of small files are kept for the other nodes, up to a limit."""

    def __init__(self) -> None:
        self._small: dict[str, bytes] = {}
        self._kept = 0

    def blocks(self, root: Path, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Give the frames of files, in blocks worth sending."""
        block = bytearray()
        for entry in entries:
            for frame in self._frames(root, entry):
                block += frame
                if len(block) >= FRAME_BYTES:
                    yield bytes(block)
                    block.clear()
        if block:
            yield bytes(block)

    def _frames(self, root: Path, entry: Entry) -> Iterator[bytes]:
        if entry.size > _SMALL:
            yield from pack_frames(_read(root, entry))
            return
        known = self._small.get(entry.digest)
        if known is None:
            known = b"".join(pack_frames(_read(root, entry)))
            if self._kept < _KEPT:
                self._kept += len(known)
                self._small[entry.digest] = known
        yield known


def _read(root: Path, entry: Entry) -> Iterator[bytes]:
    """Give a file in pieces: as much as it had when it was scanned, so that a log may grow."""
    left = entry.size
    try:
        with open(root / entry.path, "rb") as file:
            while left and (content := file.read(min(FRAME_BYTES, left))):
                left -= len(content)
                yield content
    except OSError:  # it is gone; the node sees that this is not what was meant
        return


def _command(remote: Remote) -> list[str]:
    root = remote.machine.root
    return ["env", f"PYTHONPATH={root}/lib", "python3", "-S", "-m", "drumline.node.receive", root]


async def _within(session: NodeSession, writing: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(writing, _WRITE_S)
    except TimeoutError:
        raise _stalled(session.machine, f"it has taken nothing for {_WRITE_S:.0f} s") from None


def _stalled(machine: Machine, why: str) -> HostError:
    text = f"the sync stands still: {why}; sync again, it goes on where this one ended"
    return host_error(machine, _STALLED, text)


async def _answer(session: NodeSession) -> Message:
    try:
        answer = await asyncio.wait_for(session.receive(), _ANSWER_S)
    except TimeoutError:
        raise _stalled(session.machine, f"it has not answered for {_ANSWER_S:.0f} s") from None
    if answer is None:
        done = await session.finish(_END_S)
        said = last_line(done.stderr) if done else ""
        raise host_error(
            session.machine,
            "sync",
            f"the receiver ended with code {done.code if done else 'unknown'}"
            + (f": {said}" if said else "")
            + "; bring the package there again: drumline up",
        )
    if "error" in answer:
        raise host_error(
            session.machine,
            "sync",
            f"the folder cannot be put there: {answer['error']}; R/code is as it was",
        )
    return answer
