"""The example notebook on the leader: its run starts on all nodes, by way of the laptop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.cluster.jobs.services import serve_requests
from drumline.core.errors import ClusterError
from drumline.node.requests import is_served, launch_from_leader, place_files
from local_remote import SOURCE, local_node
from ssh_nodes import free_port

NOTEBOOK = Path(__file__).parents[2] / "examples" / "cluster.ipynb"


@pytest.fixture
def nodes(tmp_path):
    remotes = [local_node(tmp_path / f"node{node}", node) for node in range(2)]
    for remote in remotes:
        (Path(remote.machine.root) / "code").mkdir()
    return remotes


def cells_as_script():
    """The notebook as a plain program: what `%%writefile` does, and the other cells as they are."""
    document = json.loads(NOTEBOOK.read_text())
    lines = ["from pathlib import Path"]
    for cell in document["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if text.startswith("%%writefile"):
            head, _, body = text.partition("\n")
            lines.append(f"Path({head.split()[1]!r}).write_text({body!r})")
        else:
            lines.append(text)
    return "\n".join(lines)


def run_ranks(nodes, request, job):
    """Stands for `drumline submit`: one rank on each node, from the code that is there."""
    port = free_port()
    ranks = []
    for rank, remote in enumerate(nodes):
        root = Path(remote.machine.root)
        folder = root / "jobs" / job
        shutil.copytree(root / "code", folder / "work")
        (folder / "run" / "logs").mkdir(parents=True)
        variables = {"RANK": rank, "WORLD_SIZE": len(nodes), "MASTER_PORT": port}
        variables |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        with (folder / "run" / "logs" / f"rank-{rank}.log").open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, *request.argv],
                    cwd=folder / "work",
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **{key: str(value) for key, value in variables.items()}},
                )
            )
    codes = [rank.wait(timeout=100) for rank in ranks]
    phase = "failed" if any(codes) else "done"
    for remote in nodes:
        state = Path(remote.machine.root) / "jobs" / job / "state.json"
        state.write_text(json.dumps({"phase": phase, "error": "rank 1 failed" * any(codes)}))


def test_a_notebook_starts_a_run_on_all_nodes(nodes, tmp_path):
    root = Path(nodes[0].machine.root)
    asked = []

    async def submit(request):
        asked.append(request)
        if request.argv[0] == "nothere.py":
            raise ClusterError("no script nothere.py")
        job = f"job{len(asked)}"
        await asyncio.to_thread(run_ranks, nodes, request, job)
        return job

    async def story():
        serving = asyncio.create_task(serve_requests(nodes, submit))
        while not is_served(root / "requests"):
            await asyncio.sleep(0.05)
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", cells_as_script()),
            cwd=root / "code",
            env={**os.environ, "DRUMLINE_ROOT": str(root), "PYTHONPATH": str(SOURCE)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await program.communicate()
        missing = asyncio.to_thread(launch_from_leader, "nothere.py", root=str(root))
        with pytest.raises(ClusterError, match=r"no script nothere\.py"):
            await missing
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return program.returncode, said.decode()

    code, said = asyncio.run(asyncio.wait_for(story(), 110))
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == "job job1 runs on all nodes"
    assert lines[1].startswith("rank-0: rank 0 of 2 on ")
    assert lines[1].endswith(": 1"), "both ranks took part"
    assert [request.workers for request in asked] == [None, None]
    assert sorted(path.name for path in (root / "requests").iterdir()) == ["served"]


def test_without_the_laptop_a_notebook_is_told(nodes):
    with pytest.raises(ClusterError, match="keep drumline jupyter running"):
        launch_from_leader("x.py", root=nodes[0].machine.root)


def test_files_stay_in_the_project_folder(tmp_path):
    old = tmp_path / "a.py"
    old.write_text("old")
    os.link(old, tmp_path / "snapshot.py")
    place_files(tmp_path, {"a.py": "bmV3", "deep/b.py": ""})
    assert (old.read_text(), (tmp_path / "snapshot.py").read_text()) == ("new", "old")
    with pytest.raises(ClusterError, match="not in the project's folder"):
        place_files(tmp_path / "deep", {"../c.py": ""})
    assert not (tmp_path / "c.py").exists()
