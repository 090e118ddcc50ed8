"""Copies of run directories in a storage: s3://bucket/prefix, file:///folder, or any fsspec URL.

<url>/<run>/<writer>/            a writer is a node (worker0, …), or the laptop
    events/rank-0.jsonl          the files, under their own names
    events/rank-0.jsonl~         or with a tilde: see below
    manifest.sha256.json         what belongs to the copy, with checksums; written last

A node may disappear in the middle of a copy. So a changed file is written beside the one that the
manifest names, then the new manifest replaces the old one, then the old file is removed: at every
moment there is one complete copy. Every storage replaces a manifest atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path

from drumline.core.errors import ClusterError
from drumline.core.files import hash_file, stays_inside
from drumline.core.json_lines import Message

MANIFEST = "manifest.sha256.json"


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file of a copy."""

    key: str
    """where it is, relative to the manifest"""
    sha256: str
    bytes: int
    mtime: float

    @classmethod
    def from_json(cls, values: Message) -> StoredFile:
        """Read it back."""
        return cls(
            key=_safe(values["key"]),
            sha256=str(values["sha256"]),
            bytes=int(values["bytes"]),
            mtime=float(values["mtime"]),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one writer's copy of a run consists of."""

    run: str
    writer: str
    written: float = 0.0
    """seconds of the epoch"""
    ended: bool = False
    """whether the run had ended"""
    files: dict[str, StoredFile] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the document."""
        files = {name: vars(file) for name, file in sorted(self.files.items())}
        return json.dumps({**vars(self), "files": files}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, *, run: str, writer: str) -> Manifest:
        """Read it back; whoever may write to the storage may have made it up.

        Whose copy it is, and by whom, is told by where it was found, whatever it says itself.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is no such document.
        """
        values = json.loads(text)
        files = values.pop("files").items()
        return cls(
            run=_part(run),
            writer=_part(writer),
            written=float(values["written"]),
            ended=bool(values["ended"]),
            files={_safe(name): StoredFile.from_json(file) for name, file in files},
        )


def _part(name: str) -> str:
    """Return a name that is one folder's, and no way elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no folder's name")
    return name


def _safe(name: str) -> str:
    if not stays_inside(name):
        raise ValueError(f"{name!r} leaves the folder")
    return name


NO_BUCKET = "does not exist"
_USER = re.compile(r"(?<=://)[^/\s]+@")


def shown_url(url: str) -> str:
    """Return the URL of the storage that nodes copy runs to, without password and parameters."""
    return _USER.sub("", url.partition("?")[0])


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn what storages raise, each with errors of its own, into one sentence with the way out."""
    shown = shown_url(url)
    try:
        yield
    except ClusterError:
        raise
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}.get(url.partition("://")[0])
        fix = f"pip install {package}" if package else "install the package that it names"
        raise ClusterError(
            f"the storage {shown} needs a package that is not installed ({error}); {fix}, here or "
            f"by the requirements of your cluster.yaml"
        ) from None
    except Exception as error:
        kind, fix = _kind_of(error)
        if not kind:
            raise
        said = str(error).replace(url, shown)
        raise ClusterError(f"the storage {shown} {kind} ({said}); {fix}", kind=kind) from None


def _kind_of(error: Exception) -> tuple[str, str]:
    """Say what an error of a storage means, and what to do."""
    said = f"{type(error).__name__} {error}"
    if isinstance(error, ValueError) and "rotocol not known" in said:
        return "has a protocol that fsspec does not know", "write s3://bucket/prefix, for example"
    if "NoCredentials" in said or "Unable to locate credentials" in said:
        fix = "on nodes, give ec2.instance_profile; on the laptop, set up AWS credentials"
        return "needs credentials, and there are none", fix
    if isinstance(error, PermissionError) or "AccessDenied" in said or "Forbidden" in said:
        return "may not be used by you", "allow reading, writing and listing of that prefix"
    if "NoSuchBucket" in said or "bucket does not exist" in said:
        return NO_BUCKET, "make the bucket, or correct storage in your cluster.yaml"
    if "EndpointConnection" in said or isinstance(error, ConnectionError | TimeoutError):
        return "cannot be reached", "check the network, and the address"
    if isinstance(error, OSError):
        return "cannot be used", "check the address, the room, and what you may do there"
    return "", ""


_CHUNK = 4 << 20
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}
"""have no folders; asked to make one, they would make a bucket"""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What a copy took."""

    files: int
    bytes: int


class Store:
    """A storage for copies of run directories; a ClusterError says why it refuses, and the fix."""

    def __init__(self, url: str) -> None:
        with _explained(url):
            import fsspec

            self.url = url.rstrip("/")
            self._fs, self._root = fsspec.core.url_to_fs(url)
            self._root = self._root.rstrip("/")
        named = self._fs.protocol
        self._protocols = {named} if isinstance(named, str) else set(named)
        self.is_folder = "file" in self._protocols
        """whether it is a folder of this machine, or of a disk that it shares"""

    def copy(
        self,
        folder: Path,
        run: str,
        writer: str,
        *,
        ended: bool = False,
        moved: Callable[[], None] = lambda: None,
    ) -> Copied:
        """Copy what has changed in a run directory since this writer's last copy.

        `ended`: whether it will not change any more.
        `moved`: is called for each piece that has arrived.
        """
        with _explained(self.url):
            old = self.read_manifest(run, writer) or Manifest(run=run, writer=writer)
            at = f"{self._root}/{run}/{writer}"
            files: dict[str, StoredFile] = {}
            sent = Copied(files=0, bytes=0)
            for name, path in _list_files(folder):
                known = old.files.get(name)
                key = f"{name}~" if known and known.key == name else name
                try:
                    source = path.open("rb")
                except FileNotFoundError:  # since we listed it
                    continue
                with source:
                    file = _unchanged(source, known) or self._send(source, at, key, moved)
                files[name] = file
                if known is None or known.sha256 != file.sha256:
                    sent = Copied(files=sent.files + 1, bytes=sent.bytes + file.bytes)
            if files == old.files and ended == old.ended and old.written:
                return sent
            new = Manifest(run=run, writer=writer, written=time.time(), ended=ended, files=files)
            self._write(f"{at}/{MANIFEST}", new.to_json().encode())
            for name, file in old.files.items():
                if name not in files or files[name].key != file.key:
                    self._forget(f"{at}/{file.key}")
        return sent

    def manifests(self, run: str | None = None) -> list[Manifest]:
        """Read the manifests of one run, or of all runs, the newest first."""
        with _explained(self.url):
            self._fs.invalidate_cache()
            found = self._fs.glob(f"{self._root}/{run or '*'}/*/{MANIFEST}")
            read = [self.read_manifest(*str(path).split("/")[-3:-1]) for path in found]
        return sorted((m for m in read if m), key=lambda m: -m.written)

    def read_manifest(self, run: str, writer: str) -> Manifest | None:
        """Read what a writer has copied of a run; None where it has copied nothing."""
        path = f"{self._root}/{run}/{writer}/{MANIFEST}"
        try:
            text = self._fs.cat_file(path)
        except FileNotFoundError as error:
            if _kind_of(error)[0] == NO_BUCKET:
                raise
            return None
        try:
            return Manifest.from_json(text, run=run, writer=writer)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ClusterError(
                f"the copy of {run} by {writer} in {shown_url(self.url)} is damaged: {MANIFEST} "
                f"cannot be read ({error}); remove {run}/{writer} there, or restore it from a "
                f"version before",
                run=run,
            ) from None

    def check(self, run: str, writer: str) -> None:
        """Raise a ClusterError, with the way out, where the storage does not answer."""
        with _explained(self.url):
            self.read_manifest(run, writer)

    def restore(self, manifest: Manifest, name: str, to: Path) -> None:
        """Bring one file back, and check it; a ClusterError where it is missing or damaged."""
        file = manifest.files[name]
        where = f"{manifest.run}/{manifest.writer}/{file.key}"
        to.parent.mkdir(parents=True, exist_ok=True)
        with _explained(self.url):
            try:
                self._fs.get_file(f"{self._root}/{where}", str(to))
            except FileNotFoundError:
                raise self._damaged(where, "it is not there") from None
        if (size := to.stat().st_size) != file.bytes:
            why = f"it has {size} bytes, but the manifest says {file.bytes}"
            raise self._damaged(where, why)
        if hash_file(to) != file.sha256:
            raise self._damaged(where, "its checksum is another")

    def _damaged(self, where: str, why: str) -> ClusterError:
        return ClusterError(
            f"the copy {where} in {shown_url(self.url)} is damaged or incomplete: {why}; take "
            f"another run's copy, or restore that file from a version before",
            file=where,
        )

    def _send(
        self, source: BufferedReader, at: str, key: str, moved: Callable[[], None]
    ) -> StoredFile:
        """Send a file as it is now: one that grows meanwhile is cut where it ended before."""
        to = f"{at}/{key}"
        digest, stat = hashlib.sha256(), os.fstat(source.fileno())
        left = stat.st_size
        source.seek(0)
        self._make_folder(to)
        with self._fs.open(to, "wb") as target:
            while left and (piece := source.read(min(_CHUNK, left))):
                digest.update(piece)
                target.write(piece)
                left -= len(piece)
                moved()
        size = stat.st_size - left
        return StoredFile(key=key, sha256=digest.hexdigest(), bytes=size, mtime=stat.st_mtime)

    def _write(self, path: str, content: bytes) -> None:
        """Replace a small file in one step."""
        self._make_folder(path)  # a run that has no file yet has none there
        if self.is_folder:  # the only one where writing is not one step by itself
            self._fs.pipe_file(f"{path}.part", content)
            Path(f"{path}.part").replace(path)
        else:
            self._fs.pipe_file(path, content)

    def _make_folder(self, path: str) -> None:
        if not _OBJECT_STORES & self._protocols:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _forget(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)


def _unchanged(source: BufferedReader, known: StoredFile | None) -> StoredFile | None:
    """Return what is known of a file, if that still holds; its date may be another."""
    stat = os.fstat(source.fileno())
    if known is None or known.bytes != stat.st_size:
        return None
    if known.mtime == stat.st_mtime:
        return known
    same = hashlib.file_digest(source, "sha256").hexdigest() == known.sha256
    return replace(known, mtime=stat.st_mtime) if same else None


def _list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Give the files of a run directory by their names in the copy; not what is half written."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), path
