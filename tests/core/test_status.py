"""A rank's status file: what was written is what another process reads, at any moment."""

from __future__ import annotations

import os

import pytest

from drumline.core.status import Phase, StatusWriter, read_status


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events" / "rank-3.status"


def test_what_begins_is_there_before_it_ends(path):
    status = StatusWriter(path)
    group = status.add_group("0", [0, 1, 2, 3])
    first = status.call_began(group, 1, "all_reduce", 4096, 10, in_backward=True)
    status.call_began(group, 2, "broadcast", 8, 20, in_backward=False)
    status.call_ended(first, 30)
    seen = read_status(path, 3)
    assert (seen.rank, seen.pid, seen.groups) == (3, os.getpid(), {"0": (0, 1, 2, 3)})
    assert [(c.op, c.seq, c.nbytes, c.ended_ns, c.in_backward) for c in seen.calls] == [
        ("all_reduce", 1, 4096, 30, True),
        ("broadcast", 2, 8, 0, False),
    ]
    assert [call.op for call in seen.waits_in] == ["broadcast"]
    assert seen.call("0", 1).arrived_ns == 10
    assert seen.call("0", 3) is None


def test_each_sign_of_progress_counts(path):
    status = StatusWriter(path)
    before = read_status(path, 3).beats
    status.beat(5, Phase.DATA)
    status.stepped(7, 1_000, 6)
    seen = read_status(path, 3)
    assert (seen.beats - before, seen.beat_ns, seen.phase) == (2, 6, Phase.DATA)
    assert (seen.step, seen.step_ns) == (7, 1_000)


def test_old_calls_make_room_for_new_ones(path):
    status = StatusWriter(path)
    group = status.add_group("0", [0, 1])
    for seq in range(1, 1001):
        slot = status.call_began(group, seq, "all_reduce", 4, seq, in_backward=False)
        if seq < 1000:
            status.call_ended(slot, seq + 1)
    seen = read_status(path, 0)
    assert max(call.seq for call in seen.calls) == 1000
    assert [call.seq for call in seen.waits_in] == [1000]


def test_a_call_that_ends_late_does_not_end_the_one_that_has_its_place(path):
    status = StatusWriter(path)
    group = status.add_group("0", [0, 1])
    calls = [
        status.call_began(group, seq, "all_reduce", 4, seq, in_backward=False)
        for seq in range(1, 258)
    ]
    status.call_ended(calls[0], 300)
    status.call_ended(calls[1], 301)
    assert [call.seq for call in read_status(path, 0).waits_in] == list(range(3, 258))


def test_what_is_removed_is_not_known(path):
    status = StatusWriter(path)
    status.remove()
    status.beat(1)
    assert read_status(path, 3) is None


def test_more_groups_than_there_is_room_for_do_no_harm(path):
    status = StatusWriter(path)
    for number in range(3000):
        group = status.add_group(f"group-{number}", range(16))
    status.call_began(group, 1, "barrier", 0, 1, in_backward=False)
    status.call_began(0, 1, "all_reduce", 0, 2, in_backward=False)
    assert [call.op for call in read_status(path, 0).calls] == ["all_reduce"]


@pytest.mark.parametrize("content", [b"", b"DRUMST01", b"x" * 70_000])
def test_what_is_no_status_is_none(path, content):
    assert read_status(path, 0) is None
    path.parent.mkdir()
    path.write_bytes(content)
    assert read_status(path, 0) is None
