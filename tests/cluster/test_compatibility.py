"""What the version before has written is still read: cluster.json, the journal, notes of pulls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from drumline.cluster.files.pull import NOTE, Puller
from drumline.cluster.home import ClusterHome
from drumline.cluster.life.journal import Journal
from drumline.cluster.providers.twin import control
from drumline.cluster.providers.twin.control import proxy_command
from drumline.node.job import JobFolder
from drumline.node.services import Service

MACHINE = {
    "node": 1,
    "host": "10.77.0.2",
    "address": "10.77.0.2",
    "user": "me",
    "port": 22,
    "key_file": None,
    "root": "/home/me/.drumline/clusters/lab/twin/worker1/drumline",
    "identity": "twin-41-7",
    "price_usd": 0.0,
    "since": 5.0,
    "until": 0.0,
}
PYTHON = ["/venv/bin/python", "-I", "-S"]
OLD_REACH = "/venv/lib/python3.11/site-packages/drumline/cluster/twin/reach.py"


def test_cluster_json_of_the_version_before(tmp_path):
    home = ClusterHome(tmp_path)
    assert (home.read_facts().id, home.read_facts().machines) == (None, ())
    old = {
        "id": "1a2b3c4d",
        "provider": "twin",
        "folder": "/home/me/project",
        "machines": [{**MACHINE, "proxy": [*PYTHON, OLD_REACH, "/twin", "worker1"]}],
        "former": [{**MACHINE, "node": 0, "until": 9.0, "proxy": []}],
        "deadline": 100.5,
        "began": 5.0,
        "limits": {"max_hours": 8.0, "budget_usd": None, "idle_minutes": 60.0},
    }
    (tmp_path / "cluster.json").write_text(json.dumps(old))
    facts = home.read_facts()
    assert (facts.id, facts.folder, facts.deadline) == ("1a2b3c4d", "/home/me/project", 100.5)
    assert facts.limits == old["limits"]
    assert (facts.former[0].until, facts.former[0].proxy) == (9.0, ())
    (machine,) = facts.machines
    now = proxy_command(Path("/twin"), "worker1")
    assert machine.proxy == (*PYTHON, *now[3:]), "SSH goes through this version's program"
    home.note(deadline=200.0)
    assert json.loads((tmp_path / "cluster.json").read_text()) == {**old, "deadline": 200.0}


def test_journal_of_the_version_before(tmp_path):
    lines = [
        {"intend": "1-2-1", "action": "run_instances", "at": 1.0, "node": 0, "zone": "a"},
        {"did": "1-2-1", "action": "run_instances", "at": 2.0, "instance": "i-1"},
        {"intend": "1-2-2", "action": "run_instances", "at": 3.0, "node": 1, "zone": "a"},
    ]
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"did": "1-2')
    journal = Journal(path)
    assert [(one.what, result["instance"]) for one, result in journal.done("run_instances")] == [
        ({"node": 0, "zone": "a"}, "i-1")
    ]
    assert [one.what["node"] for one in journal.open_intents("run_instances")] == [1]


async def _pulled(into):
    async with Puller([], "j1", into) as puller:
        return puller.pulled


def test_notes_of_pulls_and_states_of_the_version_before(tmp_path):
    note = {"state.json": {"node": "worker0", "bytes": 3, "mtime": 4, "sha256": "ab"}}
    (tmp_path / NOTE).write_text(json.dumps(note))
    (file,) = asyncio.run(_pulled(tmp_path)).values()
    assert (file.node, file.bytes, file.mtime, file.sha256) == ("worker0", 3, 4, "ab")
    job = JobFolder(tmp_path, "j1")
    job.path.mkdir(parents=True)
    (job.path / "state.json").write_text('{"phase": "done", "since": 1.0, "code": 0, "new": 1}')
    assert (job.read_state().phase, job.read_state().code) == ("done", 0)
    folder = Service(tmp_path, "jupyter").folder
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"pid": 1, "since": -1, "port": 8888}')
    assert Service(tmp_path, "jupyter").running() is None, "another process has that number"


def test_simulated_nodes_of_the_version_before_are_found():
    for folder in (b"", b"providers."):
        module = b"drumline.cluster." + folder + b"twin.host"
        assert control._MODULE.fullmatch(module)[1] == b"host"
    assert control._MODULE.fullmatch(b"drumline.cluster.providers.twin.control") is None
