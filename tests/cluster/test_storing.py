"""What `pull` brings to the storage, since the nodes have not."""

from __future__ import annotations

import json

import pytest

from drumline.cluster.files.storage import LAPTOP, store_run, stored_by_nodes
from drumline.core.errors import ClusterError
from drumline.node.storage import Store

STORED = {"at": 1.0, "ended": True, "error": ""}


@pytest.fixture
def job(tmp_path):
    """A job that was pulled from two nodes, which have stored it."""
    folder = tmp_path / "runs" / "j1"
    (folder / "run" / "logs").mkdir(parents=True)
    (folder / "run" / "logs" / "rank-0.log").write_text("hello\n")
    note(folder, "storage.json", STORED)
    note(folder, "nodes/worker1/storage.json", STORED)
    return folder


def note(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_all_nodes_must_have_stored_theirs(job):
    assert stored_by_nodes(job, nodes=2)
    assert not stored_by_nodes(job, nodes=3), "one was refused at once, and has no note"
    for other in ({**STORED, "error": "no room"}, {**STORED, "ended": False}):
        note(job, "nodes/worker1/storage.json", other)
        assert not stored_by_nodes(job, nodes=2)
    (job / "storage.json").unlink()
    assert not stored_by_nodes(job, nodes=1)


def test_a_folder_of_the_nodes_own_disks_is_no_storage(job, tmp_path):
    """It has the same address as the one here, and goes with them."""
    url, said = f"file://{tmp_path}/store", []
    store_run(url, "j1", job, lambda *words: said.append(words), stored=True, ended=True)
    assert said == [("j1", f"to {url}")]
    assert [(copy.run, copy.ended) for copy in Store(url).manifests()] == [("j1", True)]


def test_a_disk_that_all_share_gets_one_copy_of_each_file(job, tmp_path):
    url = f"file://{tmp_path}/store"
    Store(url).copy(job / "run", "j1", "worker0", ended=True)
    store_run(url, "j1", job, lambda *_: None, stored=True, ended=True)
    assert Store(url).read_manifest("j1", LAPTOP) is None


def test_a_storage_that_only_nodes_may_use_does_not_fail_a_pull(job, tmp_path):
    (tmp_path / "file").write_text("no folder")
    url, said = f"file://{tmp_path}/file/store", []
    store_run(url, "j1", job, lambda *words: said.append(words[1]), stored=True, ended=True)
    assert "the nodes have stored it" in said[-1]
    with pytest.raises(ClusterError, match="cannot be used"):
        store_run(url, "j1", job, lambda *_: None, stored=False, ended=True)


def test_a_password_in_the_address_is_not_said(job):
    said: list[str] = []
    url = "memory://me:canary@store"
    store_run(url, "j1", job, lambda *words: said.append(words[1]), stored=False, ended=True)
    assert said == ["to memory://store"]
