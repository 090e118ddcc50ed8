"""Recorded messages of real runs: as many, and as large, as the formulas say, on every rank."""

from __future__ import annotations

import json

import pytest
import torch

from drumline.comm import ALGORITHMS, Channel
from drumline.comm.recording import Recording, RecordingChannel
from drumline.probe.exercise import Exercise, mark, read_marks
from drumline.probe.record import record, to_document
from drumline.report.explain.explanation import count_traffic
from drumline.schedules.collectives import IN_PARTS, PLANS, ROOTED, CollectiveCall
from drumline.schedules.cost import critical_path, traffic
from drumline.schedules.playback import build_playback
from ranks import Team

WORLD = 5
PAIRS = [(collective, name) for collective in ALGORITHMS for name in ALGORITHMS[collective]]


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    made = {}

    def team(size):
        if size not in made:
            made[size] = Team(size, folder=tmp_path_factory.mktemp("team"))
            made[size].__enter__()
        return made[size]

    yield team
    for each in made.values():
        each.__exit__()


def test_both_sides_list_the_same_names():
    """The table that the command line reads is that of the algorithms."""
    assert {c: list(names) for c, names in ALGORITHMS.items()} == {
        c: list(names) for c, names in PLANS.items()
    }


def record_all(rank, world_size, calls):
    return [to_document(*[record(call, rank, watch=False)[0]] * 2) for call in calls]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_messages_and_bytes_are_those_of_the_formulas(teams, n):
    calls = [
        CollectiveCall(
            collective=collective,
            algorithm=algorithm,
            ranks=n,
            elements=elements,
            element_bytes=8,
            root=(n - 1) % n if collective in ("broadcast", "reduce", "scatter", "gather") else 0,
            ranks_per_node=2,
        )
        for collective, algorithm in PAIRS
        for elements in (0, 1, 7, 1001)
    ]
    told = teams(n).call(record_all, calls)
    for number, call in enumerate(calls):
        assert [count_traffic(told[rank][number]) for rank in range(n)] == traffic(call), call


def test_pieces_of_several_segments(teams):
    calls = [
        CollectiveCall(collective=c, algorithm=a, ranks=2, elements=elements, element_bytes=8)
        for c, a in PAIRS
        if a in ("ring", "chunked_ring")
        for elements in (10_001, 400_000)
    ]
    told = teams(2).call(record_all, calls)
    for number, call in enumerate(calls):
        assert [count_traffic(told[rank][number]) for rank in range(2)] == traffic(call), call


def watch_ring(rank, world_size):
    call = CollectiveCall(
        collective="all_reduce", algorithm="chunked_ring", ranks=3, elements=6, element_bytes=8
    )
    return to_document(*[record(call, rank, watch=True)[0]] * 2)


def test_what_a_rank_holds_after_each_message(teams):
    """Rank 0 of three: the sums of the docstring's diagram, read from the values themselves."""
    told = teams(3).call(watch_ring)[0]
    assert [room["name"] for room in told["rooms"]] == ["tensor", "inbox 1", "inbox 2"]
    tensor = [look["runs"] for look in told["held"] if look["room"] == 0]
    assert tensor == [
        [(0, 0, 6, 0b001)],
        [(0, 0, 2, 0b001), (2, 2, 2, 0b101), (4, 4, 2, 0b001)],
        [(0, 0, 2, 0b111), (2, 2, 2, 0b101), (4, 4, 2, 0b001)],
        [(0, 0, 2, 0b111), (2, 2, 2, 0b101), (4, 4, 2, 0b111)],
        [(0, 0, 6, 0b111)],
    ]
    sent = [(m["peer"], m["room"], m["start"], m["count"]) for m in told["messages"]]
    assert [note for note in sent if note[0] == 1] == [
        (1, 0, 4, 2),
        (1, 0, 2, 2),
        (1, 0, 0, 2),
        (1, 0, 4, 2),
    ]
    for message in told["messages"]:
        assert message["posted_ns"] <= message["waited_ns"] <= message["ended_ns"]
    assert [m["sequence"] for m in told["messages"] if m["kind"] == "recv"] == [0, 1, 2, 3]


def record_to_play(rank, world_size, calls):
    told = []
    for call in calls:
        noted, span = record(call, rank, watch=False)
        watched, _ = record(call, rank, watch=True)
        assert noted.events == watched.events
        told.append({"rank": rank, "recorded": span, **to_document(noted, watched)})
    return told


@pytest.mark.parametrize("n", [3, 4])
def test_every_algorithm_plays_back_to_its_result(teams, n):
    """The last holdings are what the collective is for, in terms of pieces and owners."""
    root = 1
    calls = [
        CollectiveCall(
            collective=collective,
            algorithm=algorithm,
            ranks=n,
            elements=20 * n if collective in IN_PARTS else 20 * n + 1,
            element_bytes=8,
            root=root if collective in ROOTED else 0,
            ranks_per_node=2,
        )
        for collective, algorithm in PAIRS
    ]
    told = teams(n).call(record_to_play, calls)
    for number, call in enumerate(calls):
        answers = json.loads(json.dumps([rank[number] for rank in told]))
        playback = build_playback(call, answers)
        assert playback.steps <= critical_path(call).rounds
        assert all(move.content for move in playback.moves)
        last = [held.rows[-1].cells for held in playback.holdings[-1]]
        everybody, pieces = (1 << n) - 1, range(len(playback.pieces))
        wanted = {
            "broadcast": [[(k, 1 << root) for k in pieces]] * n,
            "reduce": {root: [(k, everybody) for k in pieces]},
            "all_reduce": [[(k, everybody) for k in pieces]] * n,
            "scatter": [[(rank, 1 << root)] for rank in range(n)],
            "gather": {root: [(k, 1 << k) for k in range(n)]},
            "all_gather": [[(k, 1 << k) for k in range(n)]] * n,
            "reduce_scatter": {},
            "all_to_all": [[(rank, 1 << k) for k in range(n)] for rank in range(n)],
            "barrier": [[(0, everybody)]] * n,
        }[call.collective]
        for rank, cells in wanted.items() if isinstance(wanted, dict) else enumerate(wanted):
            assert last[rank] == cells, (call, rank)
        if call.collective == "reduce_scatter":
            assert all((rank, everybody) in last[rank] for rank in range(n)), call


def results(rank, world_size, calls):
    """Whether a recorded call ends with what an unrecorded one does."""
    same = []
    for call in calls:
        plain, noted = Exercise(call, rank), Exercise(call, rank)
        plain.run(Channel(ranks_per_node=call.ranks_per_node))
        noted.run(RecordingChannel(Recording(), ranks_per_node=call.ranks_per_node))
        same.append(
            all(torch.equal(plain.buffers[name], noted.buffers[name]) for name in plain.buffers)
        )
    return same


def test_recording_changes_no_result(teams):
    calls = [
        CollectiveCall(
            collective=c, algorithm=a, ranks=4, elements=20, element_bytes=8, ranks_per_node=3
        )
        for c, a in PAIRS
    ]
    assert all(all(same) for same in teams(4).call(results, calls))


def name_a_sub_channel(rank, world_size):
    recording = Recording()
    channel = RecordingChannel(recording)
    if rank > 0:
        inside = channel.among([1, 2])
        tensor = mark(0, 4, rank)
        inside.exchange(tensor, 1 - inside.rank, torch.empty_like(tensor), 1 - inside.rank)
    return [(note.kind, note.peer, note.channel) for note in recording.notes]


def test_a_sub_channel_notes_in_the_same_recording_by_the_group_s_names(teams):
    assert teams(3).call(name_a_sub_channel) == [
        [],
        [("send", 2, (1, 2)), ("recv", 2, (1, 2))],
        [("send", 1, (1, 2)), ("recv", 1, (1, 2))],
    ]


def test_marks_tell_where_a_sum_comes_from():
    values = torch.cat([mark(10, 3, 0) + mark(10, 3, 15), torch.zeros(2, dtype=torch.int64)])
    values = torch.cat([values, mark(13, 2, 1), mark(0, 1, 1)])
    assert read_marks(values) == [(0, 10, 3, 1 | 1 << 15), (5, 13, 2, 2), (7, 0, 1, 2)]
    assert read_marks(mark(0, 0, 3)) == []
