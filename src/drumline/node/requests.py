"""Starting a run on all nodes from the leader, e.g. from a notebook there.

    notebook                       leader                        laptop (`drumline jupyter`)
    launch_from_leader(…) ──▶ R/requests/<id>.json ──▶ a line of JSON ──▶ starts the job
                          ◀── R/requests/<id>.answer ◀── a line of JSON ◀── on all nodes

No node has a key to another one, so the leader cannot start anything elsewhere by itself. It asks
the laptop, which is connected to all nodes while the tunnel to Jupyter is open. All that the laptop
can be asked for is a job on this very cluster. `python -m drumline.node.requests ROOT` is the
leader's side of that connection; while it runs, it holds R/requests/served locked.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from drumline.core.errors import ClusterError, WorkerError
from drumline.core.files import GrowingFile, stays_inside, write_atomic
from drumline.core.json_lines import JsonLines, Message, encode
from drumline.core.lock import FileLock, is_locked
from drumline.node.folder import lock_code
from drumline.node.job import JobFolder

ROOT = "DRUMLINE_ROOT"
"""names the node's folder to whatever is started in Jupyter"""
MOST_BYTES = 32 << 20
_PAUSE_S, _ANSWER_S = 0.2, 120.0


def launch_from_leader(
    *argv: str,
    workers: int | None = None,
    files: Sequence[str] | None = None,
    root: str | None = None,
    show: Callable[[str], None] = print,
) -> str:
    """Run a script on all nodes from a notebook on the leader node, show its output, and wait.

    Args:
        argv: a script in the project's folder on the leader, and its arguments.
        workers: ranks on each node; None: one for each GPU, or one.
        files: what the other nodes need of that folder; None: what has changed since the last sync.
        root: the node's folder; default: what Jupyter was told.
        show: gets each line.

    Returns:
        the job's id.

    Raises:
        ClusterError: nobody takes the request, or the job could not be started.
        WorkerError: the job failed.
    """
    here = Path(root or os.environ.get(ROOT, "")).absolute()
    if not (root or os.environ.get(ROOT)):
        raise ClusterError(f"{ROOT} is not set; call this in a notebook opened by drumline jupyter")
    code = here / "code"
    names = _changed_files(here) if files is None else list(files)
    request = {"argv": list(argv), "workers": workers, "files": _read_files(code, names)}
    job = _request(here / "requests", request)
    show(f"job {job} runs on all nodes")
    _follow(JobFolder(here, job), show)
    return job


def _changed_files(root: Path) -> list[str]:
    """Name the files of R/code that were changed on this node since the laptop synced them."""
    code = root / "code"
    try:
        since = (root / "code.json").stat().st_mtime_ns
    except OSError:
        since = 0
    found = []
    for folder, folders, files in os.walk(code):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in files:
            path = Path(folder, name)
            if path.is_file() and not name.startswith(".") and path.stat().st_mtime_ns > since:
                found.append(path.relative_to(code).as_posix())
    return sorted(found)


def _read_files(code: Path, names: Sequence[str]) -> dict[str, str]:
    """Read files as base64."""
    content = {name: (code / name).read_bytes() for name in names}
    if (size := sum(map(len, content.values()))) > MOST_BYTES:
        largest = max(content, key=lambda name: len(content[name]))
        raise ClusterError(
            f"{size >> 20} MiB have changed on the leader, of which {largest} is the largest; name "
            f"what the other nodes need: launch_from_leader(…, files=['train.py'])"
        )
    return {name: base64.b64encode(data).decode() for name, data in content.items()}


def place_files(code: Path, files: dict[str, str]) -> None:
    """Write files that the node received as base64 below a folder; each is replaced atomically."""
    for name, text in files.items():
        if not stays_inside(name):
            raise ClusterError(f"{name!r} is not in the project's folder")
        path = code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(base64.b64decode(text))
        part.replace(path)


def _request(folder: Path, request: Message) -> str:
    """Leave a request, and wait for the job's id."""
    if not is_served(folder):
        raise ClusterError(
            "nobody takes requests; keep drumline jupyter running on your laptop, and try again"
        )
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    write_atomic(folder / f"{name}.json", json.dumps(request))
    answer = folder / f"{name}.answer"
    deadline = time.monotonic() + _ANSWER_S
    try:
        while not answer.exists():
            if not is_served(folder) or time.monotonic() > deadline:
                raise ClusterError(
                    f"the laptop did not answer (within {_ANSWER_S:.0f} s, or it hung up); keep "
                    f"drumline jupyter running there, and try again"
                )
            time.sleep(_PAUSE_S)
        reply = json.loads(answer.read_text())
    finally:
        for path in (folder / f"{name}.json", answer):
            path.unlink(missing_ok=True)
    if "error" in reply:
        raise ClusterError(str(reply["error"]))
    return str(reply["job"])


def is_served(folder: Path) -> bool:
    """Whether a laptop is connected to the leader node and takes the requests of notebooks."""
    return is_locked(folder / "served")


def _follow(job: JobFolder, show: Callable[[str], None]) -> None:
    """Show what this node's ranks print, until the job has ended."""
    logs: dict[Path, GrowingFile] = {}
    while True:
        state = job.read_state()
        for path in sorted(job.run.logs.glob("*.log")):
            log = logs.setdefault(path, GrowingFile(path))
            for line in log.read().decode(errors="replace").splitlines():
                show(f"{path.stem}: {line}")
        if state.over:
            if state.phase != "done":
                why = state.error or f"it ended as {state.phase}"
                raise WorkerError(f"job {job.id} failed: {why}; its logs are in {job.run.path}")
            return
        time.sleep(_PAUSE_S)


def _serve(folder: Path, given: int, out: BinaryIO) -> None:
    """Forward requests and answers, until the laptop disconnects; a second laptop waits."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sent: set[Path] = set()
    answers, served = JsonLines(), FileLock(folder / "served")
    while True:
        if served.descriptor < 0 and served.acquire(0):
            for old in folder.glob("*.json"):  # of notebooks whose laptop went away
                old.unlink(missing_ok=True)
        for path in sorted(set(folder.glob("*.json")) - sent) if served.descriptor >= 0 else ():
            sent.add(path)
            with contextlib.suppress(OSError, ValueError):
                out.write(encode(id=path.stem, **json.loads(path.read_text())))
                out.flush()
        if select.select([given], [], [], _PAUSE_S)[0]:
            chunk = os.read(given, 1 << 16)
            if not chunk:
                return
            answers.feed(chunk)
            for answer in answers.messages():
                write_atomic(folder / f"{Path(answer['id']).name}.answer", json.dumps(answer))


def main() -> None:
    """Serve notebooks' requests on the node (`ROOT`), or write files to R/code (`ROOT place`)."""
    root = Path(sys.argv[1])
    if sys.argv[2:] == ["place"]:
        files = json.load(sys.stdin)
        with lock_code(str(root)):  # a job that starts just now gets all of them, or none
            place_files(root / "code", files)
    else:
        _serve(root / "requests", sys.stdin.fileno(), sys.stdout.buffer)


if __name__ == "__main__":
    main()
