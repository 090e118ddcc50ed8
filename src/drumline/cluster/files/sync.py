"""Code on its way to the nodes: Drumline itself, and the project's folder.

    R/lib ──▶ R/lib-<hash>/drumline/…      `push_package`: the same files as the laptop's; the link
                                           is replaced in one step; jobs that run keep the edition
                                           that they were started with
    R/code                                 `sync_folder`: only what is missing there travels

An edition goes when it is more than a day old and no job holds it (`drumline.node.agent`).
Nothing but python3 and tar need be there.

The nodes scan what they have while the laptop scans its own folder; where both come to the same
hash, nothing else is sent. `drumline.node.receive` draws the exchange.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import shlex
import tarfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TypeVar

import drumline
from drumline.cluster.files.manifest import FolderManifest, scan_project
from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.remote import Done, NodeSession, Note, Remote, all_of, host_error
from drumline.core.errors import HostError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.core.json_lines import FRAME_BYTES, Message, pack_frames
from drumline.node.folder import Entry

T = TypeVar("T")
_PUSH_S = 600.0
_ASK_S = 60.0


@dataclass(frozen=True)
class Package:
    """The package's files, read once for all nodes."""

    files: tuple[tuple[str, bytes], ...]

    @functools.cached_property
    def hash(self) -> str:
        """The same for the same files."""
        digest = hashlib.sha256()
        for name, content in self.files:
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()[:16]

    @functools.cached_property
    def archive(self) -> bytes:
        """All of it as tar.gz."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
            for name, content in self.files:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return packed.getvalue()


@functools.cache
def read_package() -> Package:
    """Read the files of the Drumline package that is running, to be copied to the nodes."""
    root = Path(drumline.__file__).parent
    files = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root.parent).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and path.suffix not in (".pyc", ".so"):
            files.append(("/".join(parts), path.read_bytes()))
    return Package(tuple(files))


async def push_package(remote: Remote, package: Package | None = None) -> bool:
    """Copy the Drumline package to a node's R/lib; returns whether any file had to be sent."""
    package = package or read_package()
    root = remote.machine.root
    name = f"lib-{package.hash}"
    asked = ["sh", "-c", '[ "$(readlink "$1/lib")" = "$2" ] && [ -e "$1/$2/whole" ]', "sh"]
    if (await remote.run([*asked, root, name], timeout_s=_ASK_S)).code == 0:
        return False
    unpack = resources.files("drumline.cluster.files").joinpath("unpack.sh").read_text()
    done = await remote.run(
        ["sh", "-c", unpack, "sh", root, name], given=package.archive, timeout_s=_PUSH_S
    )
    if done.code:
        why = f"Drumline cannot be put into {shlex.quote(root)}: {_reason(done)}"
        raise host_error(remote.machine, "package", why)
    return True


def _reason(done: Done) -> str:
    """Return the line that says why: tar complains of each file, and sums that up at the end."""
    for line in done.complaint.splitlines():
        if line.endswith(("No space left on device", "Disk quota exceeded")):
            return f"{line.removeprefix('tar: ')}; make room there, then again: drumline up"
    return done.last_complaint or f"exit code {done.code}"


ROUNDS = 3
"""so often a folder that changes meanwhile is looked at again"""
_ANSWER_S, _WRITE_S, _END_S = 900.0, 300.0, 20.0  # a node may have many files to scan
_STALLED = "stalled"
_SMALL, _KEPT = 1 << 16, 1 << 26
Pack = Callable[[Path, Entry], bytes]


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
    note: Note,
    apart: Path | None = None,
) -> list[Synced]:
    """Sync the project's folder to R/code of all nodes; `push_package` must have been called.

    `apart`: a folder that stays here: the storage, into which nodes may be writing.

    Raises:
        UsageError: the folder cannot be sent; the nodes are as they were.
        HostError: a node is lost, or cannot take it; the others are as they were, or finished.
    """
    pack = _small_file_cache()
    scan = functools.partial(scan_project, folder, home.sync, apart)
    for number in range(ROUNDS):
        results, changed = await _sync_once(remotes, scan, pack, note)
        if not changed:
            return results
        note(f"sync: {changed[0]} changed meanwhile; looking again ({number + 1})")
    raise UsageError(
        f"{changed[0]} keeps changing while it is sent; wait until that has ended, or write it "
        f"into .drumlineignore"
    )


async def _sync_once(
    remotes: Sequence[Remote], scan: Callable[[], FolderManifest], pack: Pack, note: Note
) -> tuple[list[Synced], list[str]]:
    """Scan the folder, and send it to all; returns the files that have changed meanwhile, too."""
    sessions = await NodeSession.start_all(remotes, _command)
    try:
        manifest = await asyncio.to_thread(scan)
        for what in manifest.notes:
            note(f"sync: {what}")
        results = await all_of(_send(session, manifest, pack, note) for session in sessions)
    finally:
        await NodeSession.stop_all(sessions, _END_S)
    changed = sorted({path for _, paths in results for path in paths})
    return [synced for synced, _ in results], changed


async def _send(
    session: NodeSession, manifest: FolderManifest, pack: Pack, note: Note
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
        note(f"{machine.name}: {files} to send ({format_bytes(size)})")
    blocks = _blocks(pack, manifest.root, wanted)
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


def _blocks(pack: Pack, root: Path, entries: Sequence[Entry]) -> Iterator[bytes]:
    """Give the frames of files, in blocks worth sending."""
    block = bytearray()
    for entry in entries:
        large = entry.size > _SMALL
        for frame in pack_frames(_read(root, entry)) if large else [pack(root, entry)]:
            block += frame
            if len(block) >= FRAME_BYTES:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block)


def _small_file_cache() -> Pack:
    """Return what packs a small file; it is kept for the other nodes, up to a limit in bytes."""
    packed: dict[str, bytes] = {}
    kept = 0

    def pack(root: Path, entry: Entry) -> bytes:
        nonlocal kept
        known = packed.get(entry.digest)
        if known is None:
            known = b"".join(pack_frames(_read(root, entry)))
            if kept < _KEPT:
                kept += len(known)
                packed[entry.digest] = known
        return known

    return pack


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


async def _within(
    session: NodeSession, step: Awaitable[T], limit_s: float = _WRITE_S, what: str = "taken nothing"
) -> T:
    try:
        return await asyncio.wait_for(step, limit_s)
    except TimeoutError:
        text = (
            f"the sync stands still: it has {what} for {limit_s:.0f} s; sync again, it goes on "
            f"where this one ended"
        )
        raise host_error(session.machine, _STALLED, text) from None


async def _answer(session: NodeSession) -> Message:
    answer = await _within(session, session.receive(), _ANSWER_S, "not answered")
    if answer is None:
        done = await session.finish(_END_S)
        said = f": {done.last_complaint}" if done and done.last_complaint else ""
        code = done.code if done else "unknown"
        why = f"the receiver ended with code {code}{said}"
        again = "bring the package there again: drumline up"
        raise host_error(session.machine, "sync", f"{why}; {again}")
    if "error" in answer:
        why = f"the folder cannot be put there: {answer['error']}; R/code is as it was"
        raise host_error(session.machine, "sync", why)
    return answer
