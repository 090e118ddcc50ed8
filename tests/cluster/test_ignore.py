"""Our reading of ignore files against git's."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from drumline.cluster.files.manifest import scan_project

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")

PATTERNS = (
    "*.log\n!keep.log\n/top.txt\nbuild/\nsub/deep.txt\n**/cache/**\na/**/z.txt\n"
    "# no\n\\#yes\n\\!bang\ntrail \nheld\\ \n*.[oa]\n[!k-m]1\n[^k]2\n[[:digit:]]x\ndoc/*.txt\n"
    "foo**bar\nx/**\n**/only\nsp ace\nü*\n!\n/\nq?q\n[]]b\n[a-\nback\\\nlast\\*\n"
    "data/*\n!data/in.csv\n***/star.py\n/r*/s\nCRLF\r\nm[\\]]m\nn[z-a]n\n"
)
NESTED = "!*.log\n/anch.txt\ninner/\n!build/\n"
NAMES = """
a.log keep.log top.txt build x.o x.a #yes !bang trail held k1 n1 k2 3x doc only sp_ace über q-q
]b [a- back last* data in.csv star.py r1 s cache z.txt foo bar fooxbar anch.txt inner CRLF m]m
deep.txt sub x a
"""


def grow(root: Path, chance: random.Random) -> None:
    names = [name.replace("sp_ace", "sp ace") for name in NAMES.split()]
    names += ["held ", "back\\", "trail "]
    for _ in range(500):
        depth = chance.randint(0, 3)
        folder = root.joinpath(*(chance.choice(names) for _ in range(depth)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / chance.choice(names)
            if not file.exists():
                file.write_text("x")
        except (FileExistsError, NotADirectoryError):
            continue
    for folder in [path for path in root.rglob("*") if path.is_dir()]:
        if chance.random() < 0.15:
            (folder / ".gitignore").write_text(NESTED)


def kept_by_git(root: Path) -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--cached", "--exclude-per-directory=.gitignore"],
        cwd=root,
        capture_output=True,
        check=True,
        env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)},
    )
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def kept_by_us(root: Path) -> set[str]:
    return {entry.path for entry in scan_project(root).entries if entry.kind != "dir"}


@needs_git
@pytest.mark.parametrize("seed", range(4))
def test_git_agrees(tmp_path, seed):
    root = tmp_path / "re po"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    chance = random.Random(seed)
    lines = PATTERNS.split("\n")
    if seed:
        lines = chance.sample(lines, len(lines) // 2)
    (root / ".gitignore").write_text("\n".join(lines))
    grow(root, chance)
    ours, git = kept_by_us(root), kept_by_git(root)
    assert sorted(ours ^ git) == []
    assert 20 < len(ours) < sum(path.is_file() for path in root.rglob("*"))
    # A project that is a part of a repository follows the files above it, too
    for part in [path for path in root.iterdir() if path.is_dir() and path.name[0] not in ".[bd"]:
        if any(name.startswith(f"{part.name}/") for name in git):
            inside = {
                name[len(part.name) + 1 :] for name in git if name.startswith(f"{part.name}/")
            }
            assert kept_by_us(part) == inside


def test_our_own_file_wins(tmp_path):
    for name in ("data/a.csv", "b.txt", "c.txt", "sub/c.txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("data/\nc.txt\n")
    (tmp_path / ".drumlineignore").write_text("!data/\nb.txt\n")
    (tmp_path / "sub" / ".gitignore").write_text("!c.txt\n")
    (tmp_path / "sub" / ".drumlineignore").write_text("d.txt\n")
    assert kept_by_us(tmp_path) == {
        ".drumlineignore",
        ".gitignore",
        "data/a.csv",
        "sub/.drumlineignore",
        "sub/.gitignore",
        "sub/c.txt",
    }


def test_some_folders_never_travel(tmp_path):
    for name in (".git/config", "sub/.git", "env/pyvenv.cfg", "env/bin/x", "__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".drumlineignore").write_text("!.git\n!env/\n!__pycache__\n")
    assert kept_by_us(tmp_path) == {".drumlineignore"}
