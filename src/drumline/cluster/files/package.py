"""Bringing Drumline itself to the nodes: the same files as the laptop's, to R/lib.

    R/lib ──▶ R/lib-<hash>/drumline/…      the link is replaced in one step; jobs that run keep
                                           the edition that they were started with

An edition goes when it is more than a day old and no job holds it (`drumline.node.agent`).
Nothing but python3 and tar need be there.
"""

from __future__ import annotations

import functools
import hashlib
import io
import shlex
import tarfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import drumline
from drumline.cluster.ssh.remote import Remote, host_error, last_line

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
        raise host_error(
            remote.machine,
            "package",
            f"Drumline cannot be put into {shlex.quote(root)}: "
            f"{_reason(done.stderr) or f'exit code {done.code}'}",
        )
    return True


def _reason(stderr: bytes) -> str:
    """Return the line that says why: tar complains of each file, and sums that up at the end."""
    for line in stderr.decode(errors="replace").splitlines():
        if line.endswith(("No space left on device", "Disk quota exceeded")):
            return f"{line.removeprefix('tar: ')}; make room there, then again: drumline up"
    return last_line(stderr)
