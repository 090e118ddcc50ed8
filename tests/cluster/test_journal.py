"""The journal: what was intended is on the disk before it is done."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from drumline.cluster.life.journal import Journal
from drumline.core.errors import ClusterError


def test_intents_without_a_result_are_open(tmp_path):
    journal = Journal(tmp_path / "a" / "journal.jsonl")
    first = journal.intend("run", node=0, zone="ä")
    second = journal.intend("run", node=1)
    third = journal.intend("run", node=2)
    journal.intend("delete", what="x")
    journal.did(first, instance="i-1")
    journal.failed(third, "no capacity")
    again = Journal(tmp_path / "a" / "journal.jsonl")
    assert [intent.what for intent in again.open_intents("run")] == [{"node": 1}]
    assert [intent.what["node"] for intent in again.intents("run")] == [0, 1, 2]
    assert again.open_intents("run")[0].number == second.number
    assert stat.S_IMODE((tmp_path / "a" / "journal.jsonl").stat().st_mode) == 0o600


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.intend("run", node=0)
    with path.open("a") as file:
        file.write('{"intend": "cut sho')
    journal.intend("run", node=1)
    assert [intent.what["node"] for intent in journal.intents("run")] == [0, 1]


def test_threads_share_one(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    threads = [
        threading.Thread(target=lambda: [journal.did(journal.intend("x")) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 160
    assert journal.open_intents("x") == []


def test_without_a_folder_nothing_is_kept():
    journal = Journal(None)
    journal.did(journal.intend("x"))
    assert journal.read() == []


def test_without_room_nothing_is_made_but_all_is_removed():
    full = Journal(Path("/dev/full"))
    with pytest.raises(ClusterError, match=r"cannot write /dev/full: No space left.*make room"):
        full.intend("run", node=0)
    journal = full.forgiving()
    journal.did(journal.intend("terminate"))


def test_what_came_to_be(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    first, second = journal.intend("run", node=0), journal.intend("run", node=1)
    journal.failed(first, "no capacity")
    journal.did(second, instance="i-1")
    ((intent, result),) = journal.done("run")
    assert (intent.what, result["instance"]) == ({"node": 1}, "i-1")
