"""Editions of the package on a node: which one processes have, and which may go."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time

from drumline.cluster.files.sync import Package, push_package
from local_remote import SOURCE, bare_node


def test_an_edition_stays_while_a_job_runs_with_it(tmp_path):
    node, root = bare_node(tmp_path / "a node"), tmp_path / "a node"
    editions = [Package((("drumline/__init__.py", f"{n}".encode()),)) for n in range(3)]
    names = [f"lib-{edition.hash}" for edition in editions]

    def push(number: int) -> bool:
        for name in names:  # all are of last week
            if (root / name).exists():
                os.utime(root / name, (time.time() - 7 * 86_400,) * 2)
        return asyncio.run(push_package(node, editions[number]))

    assert push(0)
    held = (root / names[0] / "whole").open()
    fcntl.flock(held, fcntl.LOCK_SH)
    assert push(1)
    assert os.readlink(root / "lib") == names[1]
    assert (root / names[0] / "drumline" / "__init__.py").read_text() == "0"
    assert push(0), "back to an edition that is there"
    assert os.fstat(held.fileno()).st_ino == (root / names[0] / "whole").stat().st_ino
    assert not (root / names[1]).exists(), "nobody has held it"
    held.close()
    assert push(2)
    assert sorted(path.name for path in root.iterdir()) == sorted(["lib", names[2]])


def test_what_a_job_starts_is_of_its_own_edition(tmp_path):
    own, newer = tmp_path / "lib-1", tmp_path / "lib-2"
    for edition in (own, newer):
        edition.mkdir()
        (edition / "drumline").symlink_to(SOURCE / "drumline")
        (edition / "whole").touch()
    script = (
        "import fcntl, os\n"
        "from drumline.node.agent import WHOLE, hold_edition, of_this_edition\n"
        "hold_edition()\n"
        "print(of_this_edition({'PYTHONPATH': 'mine', 'A': 'b'}))\n"
        "with open('lib-1/whole') as file:\n"
        "    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(own)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"{{'PYTHONPATH': '{own}:mine', 'A': 'b'}}\n"
    assert "BlockingIOError" in done.stderr, "nobody else can lock it"
