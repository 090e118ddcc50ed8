"""Bring the published image sets to this machine, checked byte by byte.

For each missing file the sources are asked in turn. What arrives is decompressed, measured and
hashed while it is written beside its place, and takes its place (one rename) only if size and
SHA-256 are right. So at every moment a file is either absent, or whole. Files are kept
decompressed: every start of every rank reads them.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tarfile import TarError
from typing import IO

from drumline.core.errors import DataError, UsageError
from drumline.data.catalogue import PUBLISHED, Published, PublishedFile
from drumline.data.idx import read_content
from drumline.data.sources import Opener, SourceError, open_source

Progress = Callable[[str, int, int], None]
"""called with a file's name, its bytes so far and its bytes in all"""

_CHUNK_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What a fetch did: the folder with the set, and the names of the files it kept or brought."""

    folder: Path
    kept: tuple[str, ...]
    brought: tuple[str, ...]


def fetch(
    name: str,
    folder: Path,
    progress: Progress | None = None,
    *,
    mirrors: Sequence[str] | None = None,
) -> Fetched:
    """Put the files of a published set into `folder`/`name`, and keep those that are right already.

    Args:
        name: mnist or fashion-mnist.
        folder: the data folder; see `default_folder`.
        progress: told about every chunk that arrives.
        mirrors: sources to ask instead of the catalogue's, in order.

    Raises:
        UsageError: there is nothing to fetch under that name.
        DataError: no source had a file, or it cannot be written; what was complete stays.
    """
    published = find_published(name)
    target = folder / published.name
    _make_folder(target)
    missing = [file for file in published.files if not _keep(target, file)]
    kept = tuple(file.name for file in published.files if file not in missing)
    attempts: list[str] = []
    brought: list[str] = []
    for source in mirrors if mirrors is not None else published.mirrors:
        if missing:
            arrived = _fetch_from(source, missing, target, progress, attempts)
            brought += [file.name for file in arrived]
            missing = [file for file in missing if file not in arrived]
    if missing:
        raise DataError(
            f"{published.name} could not be fetched: {', '.join(file.name for file in missing)} "
            f"came from no source ({'; '.join(attempts) or 'none was given'}); check the network, "
            f"or put the files, plain or .gz, into {target}",
            path=target,
            attempts=attempts,
        )
    return Fetched(folder=target, kept=kept, brought=tuple(brought))


def find_published(name: str) -> Published:
    """Return what is known of a data set; unknown names are a `UsageError`."""
    if name not in PUBLISHED:
        raise UsageError(
            f"there is nothing to fetch for {name!r}; mnist-mini, shakespeare and synthetic come "
            f"with the package, so name one of {', '.join(PUBLISHED)}"
        )
    return PUBLISHED[name]


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target, error) from error


def _keep(target: Path, file: PublishedFile) -> bool:
    """Say whether the file is there and right, plain or gzipped; remove a form that is wrong."""
    right = False
    for path in (target / file.name, target / f"{file.name}.gz"):
        if not os.path.isfile(path):
            continue
        try:
            content = read_content(path)
        except DataError:
            content = b""
        if hashlib.sha256(content).hexdigest() == file.sha256:
            right = True
        else:
            _remove(path)
    return right


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def _fetch_from(
    source: str,
    files: Sequence[PublishedFile],
    target: Path,
    progress: Progress | None,
    attempts: list[str],
) -> list[PublishedFile]:
    """Bring what this source has; note in `attempts` what it refused, and why."""
    arrived: list[PublishedFile] = []
    try:
        with open_source(source) as opener:
            for file in files:
                try:
                    _bring(opener, file, target / file.name, progress)
                    arrived.append(file)
                except SourceError as error:
                    attempts.append(f"{source} {file.name}: {error}")
                    if error.gone:
                        break
    except SourceError as error:
        attempts.append(f"{source}: {error}")
    return arrived


def _bring(opener: Opener, file: PublishedFile, path: Path, progress: Progress | None) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with opener(file.name) as stream, part.open("wb") as out:
                _copy(_decompressed(stream), out, file, progress)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:  # reading has its own error: this one is the disk's
        raise _unwritable(path, error) from error


def _copy(
    chunks: Iterator[bytes], out: IO[bytes], file: PublishedFile, progress: Progress | None
) -> None:
    digest, done = hashlib.sha256(), 0
    for chunk in chunks:
        done += len(chunk)
        if done > file.size_bytes:  # before it fills the disk
            raise SourceError(f"more than the expected {file.size_bytes} bytes")
        digest.update(chunk)
        out.write(chunk)
        if progress is not None:
            progress(file.name, done, file.size_bytes)
    if done != file.size_bytes:
        raise SourceError(f"{done} bytes, expected {file.size_bytes}")
    if digest.hexdigest() != file.sha256:
        raise SourceError(f"SHA-256 {digest.hexdigest()[:12]}…, expected {file.sha256[:12]}…")


def _decompressed(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the stream's content in chunks of bounded size, gunzipped if it is gzipped."""
    raw = _chunks(stream)
    first = next(raw, b"")
    if not first.startswith(_GZIP):
        yield first
        yield from raw
        return
    inflate = zlib.decompressobj(wbits=31)
    pending = first
    try:
        while pending and not inflate.eof:
            yield inflate.decompress(pending, _CHUNK_BYTES)
            pending = inflate.unconsumed_tail or next(raw, b"")
    except zlib.error as error:
        raise SourceError(f"damaged gzip data ({error})") from error


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while True:
        try:
            chunk = stream.read(_CHUNK_BYTES)
        except (OSError, EOFError, HTTPException, TarError, zlib.error) as error:
            raise SourceError(f"the transfer broke off ({error})") from error
        if not chunk:
            return
        yield chunk


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot write {path}: {error.strerror or error}; free or choose another folder "
        f"(DRUMLINE_DATA=FOLDER)",
        path=path,
    )
