"""Folders on their way to nodes: changes of each kind, interruptions, and names of each kind."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import drumline
from drumline.cluster.files import sync as sync_module
from drumline.cluster.files.manifest import scan_project
from drumline.cluster.files.sync import push_package, sync_folder
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.remote import NodeSession
from drumline.core.errors import HostError, UsageError
from local_remote import LocalRemote, bare_node


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "my prüject"
    folder.mkdir()
    return folder


@pytest.fixture
def node(tmp_path) -> LocalRemote:
    """A node that has the package already."""
    root = tmp_path / "no de"
    root.mkdir()
    (root / "lib").symlink_to(Path(drumline.__file__).parents[1])
    return bare_node(root)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def sync(project, home, *nodes, say=lambda *_: None):
    async def main():
        return await sync_folder(nodes, project, home, note=say)

    return asyncio.run(main())


def tree(folder: Path) -> dict[str, object]:
    """All that a folder holds, as values to compare."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = "dir"
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_all_kinds_of_changes_arrive(project, home, node):
    code = Path(node.machine.root) / "code"
    bad = os.fsdecode(b"not \xff utf-8")
    write(project, **{"a.py": "a", "b ü\n.txt": "b", bad: "c", "same": "a", "empty": ""})
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "deep" / "er").mkdir(parents=True)
    (project / "deep" / "er" / "big").write_bytes(os.urandom(700_000) + bytes(700_000))
    (project / "void" / "in").mkdir(parents=True)
    (project / "link").symlink_to("deep/er/big")
    (project / "to folder").symlink_to("deep")
    (one,) = sync(project, home, node)
    assert tree(code) == tree(project)
    assert one.sent == 6  # content that is there twice travels once, and links have none
    (one,) = sync(project, home, node)
    assert (one.sent, one.removed) == (0, 0)

    assert (code.parent / "limits" / "busy").exists(), "a node does not end itself meanwhile"

    # Who reads the old file keeps it; a mode, a move and a copy need no content
    os.link(code / "a.py", code.parent / "snapshot")
    write(project, **{"a.py": "A changed"})
    (project / "run.sh").chmod(0o644)
    (project / "deep" / "er" / "big").rename(project / "moved")
    shutil.copy(project / "b ü\n.txt", project / "copy")
    (project / bad).unlink()
    (project / "link").unlink()
    (project / "link").symlink_to("moved")
    (one,) = sync(project, home, node)
    assert tree(code) == tree(project)
    assert (one.sent, one.removed) == (1, 2)
    assert (code.parent / "snapshot").read_text() == "a"

    # Things that become other things
    (project / "to folder").unlink()
    (project / "to folder").mkdir()
    write(project, **{"to folder/x": "x"})
    shutil.rmtree(project / "deep")
    (project / "deep").write_text("a file now")
    (project / "void" / "in").rmdir()
    (project / "void" / "in").symlink_to("..")
    (project / "empty").unlink()
    (project / "empty").mkdir()
    sync(project, home, node)
    assert tree(code) == tree(project)
    assert not (code.parent / "code.incoming").exists()


def test_what_was_changed_on_the_node_is_put_right(project, home, node):
    code = Path(node.machine.root) / "code"
    write(project, a="one", b="two")
    sync(project, home, node)
    write(code, a="ONE", extra="x")
    (code / "b").unlink()
    (one,) = sync(project, home, node)
    assert tree(code) == {**tree(project), "extra": (b"x", False)}
    assert (one.sent, one.removed) == (2, 0)
    (code.parent / "code.json").write_text("damaged")
    (one,) = sync(project, home, node)
    assert one.sent == 0
    assert sync(project, home, node)[0].sent == 0


def test_what_somebody_has_made_on_the_node_stays(project, home, node):
    """A notebook, say; also in a folder that is no more, and where the note was lost."""
    code = Path(node.machine.root) / "code"
    write(project, **{"folder/a": "one", "b": "two"})
    sync(project, home, node)
    write(code, **{"mine.ipynb": "{}", "folder/mine": "m"})
    assert sync(project, home, node)[0].sent == 0
    shutil.rmtree(project / "folder")
    assert sync(project, home, node)[0].removed == 1
    assert set(tree(code)) == {"b", "mine.ipynb", "folder", "folder/mine"}
    (code.parent / "code.json").unlink()
    write(project, b="three")
    sync(project, home, node)
    assert set(tree(code)) == {"b", "mine.ipynb", "folder", "folder/mine"}


def test_results_do_not_travel(project, home, node):
    write(project, **{"runs/one/log": "x", "deep/runs/y": "y"})
    sync(project, home, node)
    assert set(tree(Path(node.machine.root) / "code")) == {"deep", "deep/runs", "deep/runs/y"}


def test_links_that_lead_outside(project, home, node, tmp_path):
    (tmp_path / "outside").write_text("content")
    (project / "file").symlink_to(tmp_path / "outside")
    write(project, target="t")
    (project / "absolute").symlink_to(project / "target")
    (project / "nowhere").symlink_to("/no/such/file")
    os.mkfifo(project / "pipe")
    said = []
    sync(project, home, node, say=said.append)
    code = Path(node.machine.root) / "code"
    assert tree(code) == {
        "absolute": ("link", "target"),
        "file": (b"content", False),
        "target": (b"t", False),
    }
    assert any("pipe is no file" in line for line in said)
    assert any("nowhere leads nowhere" in line for line in said)
    (project / "data").symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"data leads to .* write /data into .drumlineignore"):
        sync(project, home, node)
    write(project, **{".drumlineignore": "/data\n"})
    sync(project, home, node)


def test_folders_that_must_not_travel(project, home, node, tmp_path, monkeypatch):
    monkeypatch.setenv("DRUMLINE_HOME", str(project / "drumline"))
    (project / "drumline" / "clusters" / "x" / "ssh").mkdir(parents=True)
    write(project, **{"drumline/clusters/x/ssh/id_ed25519": "secret", "a": ""})
    assert [entry.path for entry in scan_project(project).entries] == ["a", "drumline"]
    write(project, **{"my store/run-1/worker0/log": "nodes write here"})
    entries = scan_project(project, apart=project / "my store").entries
    assert [entry.path for entry in entries] == ["a", "drumline"]
    monkeypatch.setenv("HOME", str(project))
    with pytest.raises(UsageError, match="go to your project's own folder"):
        scan_project(project)
    with pytest.raises(UsageError, match="is no folder"):
        scan_project(project / "a")


def test_a_file_that_changes_meanwhile(project, home, node, monkeypatch):
    """What travels is what was looked at; a log may grow, but not turn into something else."""
    write(project, log="1\n", other="x")
    look = sync_module.scan_project
    changes = iter(["more", "again", None])

    def scan_then_change(*args):
        manifest = look(*args)
        with open(project / "log", "a") as log:
            log.write("2\n")
        if (text := next(changes)) is not None:
            write(project, other=text)
        return manifest

    monkeypatch.setattr(sync_module, "scan_project", scan_then_change)
    said = []
    sync(project, home, node, say=said.append)
    code = Path(node.machine.root) / "code"
    assert [line for line in said if "meanwhile" in line] == [
        "sync: other changed meanwhile; looking again (1)",
        "sync: other changed meanwhile; looking again (2)",
    ]
    assert (code / "other").read_text() == "again"
    assert (project / "log").read_text().startswith((code / "log").read_text())
    changes = iter(["d", "e", "f"])
    write(project, other="c")
    with pytest.raises(UsageError, match=r"other keeps changing.*drumlineignore"):
        sync(project, home, node)
    assert (code / "other").read_text() == "again"


def test_a_node_that_cannot_take_it_is_named(project, home, node, tmp_path):
    write(project, a="a")
    good = bare_node(tmp_path / "good", 1)
    Path(good.machine.root).mkdir()
    (tmp_path / "good" / "lib").symlink_to(Path(drumline.__file__).parents[1])
    (Path(node.machine.root) / "code").write_text("a file is in the way")
    with pytest.raises(HostError, match=r"worker0 \(127.0.0.1\): the folder cannot be put there"):
        sync(project, home, node, good)
    assert (tmp_path / "good" / "code" / "a").read_text() == "a"
    (tmp_path / "good" / "lib").unlink()
    with pytest.raises(HostError, match=r"worker1 .*receiver ended with code 1.*No module named"):
        sync(project, home, good)


def test_a_node_that_stands_still_or_cannot_start_holds_nobody_up(
    project, home, node, tmp_path, monkeypatch
):
    monkeypatch.setattr(sync_module, "_ANSWER_S", 0.2)
    processes = []
    start = LocalRemote.start

    async def sleep(_):
        processes.append(await start(node, ["sleep", "60"]))
        return processes[-1]

    monkeypatch.setattr(node, "start", sleep)
    with pytest.raises(HostError, match=r"stands still: it has not answered for 0 s"):
        sync(project, home, node)

    async def refuse(_):
        raise HostError("worker1 is lost")

    other = bare_node(tmp_path / "other", 1)
    monkeypatch.setattr(other, "start", refuse)

    async def story():
        with pytest.raises(HostError, match="worker1 is lost"):
            await NodeSession.start_all([node, other], lambda _: [])
        await asyncio.wait_for(processes[-1].process.wait(), 20)

    asyncio.run(story())
    assert len(processes) == 2
    assert all(process.process.returncode for process in processes), (
        "those that had started were ended"
    )


def test_an_interrupted_sync_is_continued(project, home, node):
    """What came before the cut does not travel again."""
    write(project, **{f"f{number}": str(number) * 100_000 for number in range(4)})
    manifest = scan_project(project)
    receiver = [
        *("env", f"PYTHONPATH={node.machine.root}/lib", sys.executable),
        *("-m", "drumline.node.receive", node.machine.root),
    ]
    packed = zlib.compress(manifest.packed)
    pack = sync_module._small_file_cache()
    blocks = b"".join(sync_module._blocks(pack, project, manifest.entries[:2]))
    lines = (
        json.dumps({"hash": manifest.hash}) + "\n" + json.dumps({"manifest": len(packed)}) + "\n"
    )
    cut = subprocess.run(
        receiver, input=lines.encode() + packed + blocks + b"\x00", capture_output=True, timeout=60
    )
    assert cut.returncode == 1
    assert not (Path(node.machine.root) / "code").exists()
    (one,) = sync(project, home, node)
    assert one.sent == 2
    assert tree(Path(node.machine.root) / "code") == tree(project)


def test_the_package_goes_first_and_then_the_folder(servers, project, home):
    for number in range(2):
        servers.start(number)
    write(project, **{"train.py": "print('hi')"})

    async def main():
        machines = [server.machine for server in servers.all]
        async with Fleet.open(machines, home, timeout_s=20) as fleet:
            first = await fleet.all(push_package)
            again = await fleet.all(push_package)
            synced = await sync_folder(fleet.remotes, project, home, note=lambda _: None)
            root = fleet.leader.machine.root
            words = ["env", f"PYTHONPATH={root}/lib", "python3", "-c"]
            done = await fleet.leader.run(
                [*words, "import drumline; print(drumline.__version__, drumline.__file__)"]
            )
            return first, again, synced, done

    first, again, synced, done = asyncio.run(main())
    assert (first, again) == ([True, True], [False, False])
    assert [one.sent for one in synced] == [1, 1]
    assert len({one.hash for one in synced}) == 1
    version, where = done.stdout.decode().rstrip().split(" ", 1)
    assert version == drumline.__version__
    assert where == f"{servers.all[0].home}/drumline/lib/drumline/__init__.py"
    for server in servers.all:
        assert (server.home / "drumline" / "code" / "train.py").exists()


@pytest.mark.parametrize(
    "module",
    [
        "__init__",
        "node/__init__",
        "node/folder",
        "node/hangup",
        "node/ownership",
        "node/receive",
    ],
)
def test_what_runs_before_the_environment_is_old_and_plain_python(module):
    path = Path(drumline.__file__).parent / f"{module}.py"
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for part in ast.walk(tree):
        if isinstance(part, ast.ImportFrom | ast.Import) and part.col_offset == 0:
            names = (
                [part.module]
                if isinstance(part, ast.ImportFrom)
                else [alias.name for alias in part.names]
            )
            tops = {str(name).split(".")[0] for name in names} - {"drumline"}
            assert tops <= sys.stdlib_module_names
