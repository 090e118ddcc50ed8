"""Checkpoints on their way to the leader."""

from __future__ import annotations

import asyncio

import pytest

from drumline.cluster.files.storage import offer_checkpoints
from drumline.core.errors import HostError, UsageError
from local_remote import local_node


@pytest.fixture
def pulled(tmp_path):
    for step in (3, 12):
        folder = tmp_path / "pulled" / "run" / "checkpoints" / f"step-{step:09}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_bytes(b"x" * step * 100_000)
    return tmp_path / "pulled"


def offer(leader, pulled):
    say = lambda *_: None  # noqa: E731
    return asyncio.run(offer_checkpoints(leader, "j1", pulled=pulled, storage=None, note=say))


def test_the_newest_checkpoint_goes_to_the_leader(tmp_path, pulled):
    root = tmp_path / "a node"
    assert offer(local_node(root), pulled) == "resumed/j1"
    (step,) = (root / "resumed" / "j1" / "checkpoints").iterdir()
    assert (step.name, (step / "state.json").stat().st_size) == ("step-000000012", 1_200_000)
    with pytest.raises(UsageError, match="nobody has checkpoints of j1"):
        offer(local_node(tmp_path / "another"), None)


class Deaf:
    """A command that takes nothing, or does not end."""

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes
        self.stopped = False

    async def write(self, content):
        await asyncio.sleep(0 if self.takes else 60)

    async def end_input(self):
        pass

    async def wait(self):
        await asyncio.sleep(60)

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize("takes", [False, True])
def test_a_leader_that_stands_still_is_named(tmp_path, pulled, monkeypatch, takes):
    monkeypatch.setattr("drumline.cluster.files.storage._WRITE_S", 0.1)
    leader, flow = local_node(tmp_path / "a node"), Deaf(takes=takes)

    async def start(_):
        return flow

    monkeypatch.setattr(leader, "start", start)
    with pytest.raises(HostError, match=r"worker0 .*taken nothing of the checkpoint for 0 s"):
        offer(leader, pulled)
    assert flow.stopped
