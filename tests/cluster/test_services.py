"""JupyterLab and TensorBoard, really started; the node is this machine."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from drumline.cluster.jobs import services
from drumline.cluster.jobs.services import open_service
from drumline.core.errors import HostError
from drumline.node.services import Service, start_time
from local_remote import local_node


@pytest.fixture
def leader(tmp_path):
    leader = local_node(tmp_path / "a node")
    yield leader
    for name in ("jupyter", "tensorboard"):
        Service(Path(leader.machine.root), name).stop()


def test_a_lost_leader_ends_the_wait_and_another_node_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "_TOUCH_S", 0.01)
    monkeypatch.setattr(services, "_AGAIN_S", 0.01)
    leader, other = (local_node(tmp_path / str(node), node) for node in range(2))
    touched = []

    async def lost(*_, **__):
        raise HostError("worker0: the connection was lost")

    async def touch(*_, **__):
        touched.append(1)
        if len(touched) > 3:
            monkeypatch.setattr(leader, "run", lost)

    monkeypatch.setattr(other, "run", lost)
    monkeypatch.setattr(leader, "run", touch)
    with pytest.raises(HostError, match="worker0: the connection was lost"):
        asyncio.run(asyncio.wait_for(services.stay_busy([leader, other]), 20))
    assert len(touched) == 4


def quiet(node, what):
    pass


def fetch(url):
    """Ask for a page, and say where it ended up."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.geturl(), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, url, b""


def seen_by_others(token):
    """Processes whose words or variables hold the token."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        for name in ("cmdline", "environ"):
            try:
                content = (entry / name).read_bytes()
            except OSError:
                continue
            if token.encode() in content:
                found.append(f"{entry}/{name}")
    return found


def test_jupyter_opens_to_its_token_alone(leader):
    told = []
    service = asyncio.run(open_service(leader, "jupyter", lambda node, what: told.append(what)))
    token = service.url.partition("token=")[2]
    assert len(token) >= 32
    status, _, page = fetch(service.url)
    assert status == 200
    assert b"jupyter-config-data" in page
    assert fetch(f"http://127.0.0.1:{service.port}/api/contents")[0] == 403
    assert "/login" in fetch(f"http://127.0.0.1:{service.port}/lab")[1]
    status, _, kernels = fetch(f"http://127.0.0.1:{service.port}/api/kernelspecs?token={token}")
    spec = json.loads(kernels)["kernelspecs"]["python3"]["spec"]
    assert spec["argv"][0]

    assert seen_by_others(token) == []
    assert token not in repr(service) + "".join(told)
    folder = Path(leader.machine.root) / "services" / "jupyter"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    holders = [p for p in folder.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    assert folder / "log" not in holders
    assert folder / "config.json" in holders
    assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o600

    # a second command finds the one that runs
    again = asyncio.run(open_service(leader, "jupyter", quiet))
    assert again.url == service.url
    pid = json.loads((folder / "state.json").read_text())["pid"]
    assert Service(Path(leader.machine.root), "jupyter").stop()
    assert start_time(pid) is None
    assert not Service(Path(leader.machine.root), "jupyter").stop()


def test_tensorboard_shows_the_jobs(leader):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for part in ("run/tensorboard", "work/lightning_logs/version_0"):
        folder = Path(leader.machine.root) / "jobs" / "j1" / part
        with tensorboard.SummaryWriter(str(folder)) as writer:
            writer.add_scalar("loss", 1.0, 0)
    service = asyncio.run(open_service(leader, "tensorboard", quiet))
    status, _, page = fetch(service.url)
    assert status == 200
    assert b"TensorBoard" in page
    for _ in range(100):  # it reads the files in the background
        runs = json.loads(fetch(f"http://127.0.0.1:{service.port}/data/runs")[2])
        if len(runs) == 2:
            break
    assert sorted(runs) == ["j1/run/tensorboard", "j1/work/lightning_logs/version_0"]


def test_a_service_that_cannot_start_says_why(leader):
    """A package that breaks at start: the end of the log comes back."""
    broken = Path(leader.machine.root) / "code" / "tensorboard"
    python = Path(leader.machine.root) / "env" / "bin" / "python"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    (broken / "main.py").write_text("raise SystemExit('no room for boards')")
    python.write_text(python.read_text().replace("PYTHONPATH=", f"PYTHONPATH='{broken.parent}':"))
    with pytest.raises(HostError, match="no room for boards"):
        asyncio.run(open_service(leader, "tensorboard", quiet))
