"""From recordings made up by hand to steps, holdings, accounts and deadlocks."""

from __future__ import annotations

import json

import pytest

from drumline.report.explain.explanation import (
    build_explanation,
    describe_call,
    find_circle,
    find_deadlock,
    name_pieces,
)
from drumline.schedules.collectives import CollectiveCall
from drumline.schedules.cost import RankTraffic
from drumline.schedules.playback import BufferRow, Content, build_playback
from recordings import answer, exchange, held, note, stuck, tokens


def test_an_exchange_is_two_steps_of_two_messages():
    playback = build_playback(*exchange())
    assert playback.pieces == [(0, 2), (2, 4)]
    assert [(m.step, m.source, m.target, m.content) for m in playback.moves] == [
        (1, 0, 1, [Content(1, 0b01)]),
        (1, 1, 0, [Content(0, 0b10)]),
        (2, 0, 1, [Content(0, 0b11)]),
        (2, 1, 0, [Content(1, 0b11)]),
    ]
    assert [(m.posted_ns, m.received_ns) for m in playback.moves[:2]] == [(100, 900)] * 2


def test_what_was_received_is_combined_before_the_step_ends():
    playback = build_playback(*exchange())
    rows = [[held.rows for held in now] for now in playback.holdings]
    assert rows[0][0] == [BufferRow("tensor", [Content(0, 1), Content(1, 1)])]
    assert rows[1][0] == [BufferRow("tensor", [Content(0, 3), Content(1, 1)])]
    assert rows[1][1] == [BufferRow("tensor", [Content(0, 2), Content(1, 3)])]
    assert rows[2] == [[BufferRow("tensor", [Content(0, 3), Content(1, 3)])]] * 2
    assert not any(held.beside for now in playback.holdings for held in now), "it is in the sum"


def test_a_barrier_shows_who_has_been_heard_of():
    playback = build_playback(*tokens())
    assert [[h.rows[0].cells for h in now] for now in playback.holdings] == [
        [[Content(0, 0b01)], [Content(0, 0b10)]],
        [[Content(0, 0b11)], [Content(0, 0b11)]],
    ]


def chain():
    """Rank 0 sends to 1, and 1 on to 2, in two parts: the second overtakes nothing."""
    call = CollectiveCall(
        collective="broadcast", algorithm="ring", ranks=3, elements=4, element_bytes=8
    )
    room = [{"name": "tensor", "elements": 4}]
    everybody = (0, 1, 2)

    def message(kind, peer, part, posted, ended):
        return note(kind, peer, 2 * part, 2, posted, ended, sequence=part, channel=everybody)

    first = answer(
        0,
        room,
        [message("send", 1, 0, 10, 100), message("send", 1, 1, 11, 101)],
        [("posted", 0), ("posted", 1), ("done", 0), ("done", 1)],
        [held(0, 0, (0, 0, 4, 1))],
    )
    middle = answer(
        1,
        room,
        [
            message("recv", 0, 0, 10, 50),
            message("recv", 0, 1, 11, 70),
            message("send", 2, 0, 60, 100),
            message("send", 2, 1, 80, 101),
        ],
        [
            ("posted", 0),
            ("posted", 1),
            ("done", 0),
            ("posted", 2),
            ("done", 1),
            ("posted", 3),
            ("done", 2),
            ("done", 3),
        ],
        [held(3, 0, (0, 0, 2, 1)), held(5, 0, (0, 0, 4, 1))],
    )
    end = answer(
        2,
        room,
        [message("recv", 1, 0, 10, 90), message("recv", 1, 1, 11, 95)],
        [("posted", 0), ("posted", 1), ("done", 0), ("done", 1)],
        [held(3, 0, (0, 0, 2, 1)), held(4, 0, (0, 0, 4, 1))],
    )
    return call, [first, middle, end]


def test_parts_follow_each_other_on_the_way():
    playback = build_playback(*chain())
    assert [(m.step, m.source, m.content[0].piece) for m in playback.moves] == [
        (1, 0, 0),
        (2, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    cells = [[held.rows[0].cells for held in now] for now in playback.holdings]
    assert [[sum(cell is not None for cell in row) for row in now] for now in cells] == [
        [2, 0, 0],
        [2, 1, 0],
        [2, 2, 1],
        [2, 2, 2],
    ]


def test_what_lies_beside_is_shown_while_it_is_news():
    call = CollectiveCall(
        collective="gather", algorithm="tree", ranks=2, elements=4, element_bytes=8
    )
    rooms = [
        {"name": "tensor", "elements": 2},
        {"name": "target", "elements": 4},
        {"name": "inbox 1", "elements": 4},
    ]
    root = answer(
        0,
        rooms,
        [note("recv", 1, 2, 2, 10, 50, room=2)],
        [("posted", 0), ("done", 0)],
        [held(0, 0, (0, 0, 2, 1)), held(1, 2, (0, 0, 2, 1), (2, 2, 2, 2))],
    )
    leaf = answer(
        1,
        rooms[:1],
        [note("send", 0, 0, 2, 20, 60)],
        [("posted", 0), ("done", 0)],
        [held(0, 0, (0, 2, 2, 2))],
    )
    after = build_playback(call, [root, leaf]).holdings[1][0]
    assert after.rows == [BufferRow("tensor", [Content(0, 1)]), BufferRow("target", [None, None])]
    assert after.beside == [Content(1, 2)], "its own piece is in the tensor already"


def test_accounts_and_times():
    explanation = build_explanation(*exchange())
    assert explanation.counted == explanation.predicted
    assert explanation.counted[0] == RankTraffic(
        sent_messages=2, sent_bytes=32, received_messages=2, received_bytes=32
    )
    assert explanation.path == (2, 32)
    timing = explanation.timing
    # from the last start to the last end: 2000, 4000, 2000 ns
    assert timing.measured_s == pytest.approx(2e-6)
    assert (timing.shortest_s, timing.longest_s) == pytest.approx((2e-6, 4e-6))
    assert timing.alpha_beta.beta_s_per_byte == pytest.approx(1e-7)
    assert explanation.predicted_s == pytest.approx(2 * (1e-4 - 8e-7) + 32e-7)


def test_the_document_is_plain_and_whole():
    document = json.loads(json.dumps(build_explanation(*exchange()).to_json()))
    assert document["call"]["nbytes"] == 32
    assert [piece["name"] for piece in document["pieces"]] == ["a", "b"]
    assert document["holdings"][2][0] == {
        "rows": [{"name": "tensor", "cells": [[0, 3], [1, 3]]}],
        "beside": [],
    }
    assert document["traffic"][1]["counted"] == document["traffic"][1]["predicted"]
    assert document["deadlock"] is None


def test_both_send_first():
    call, answers = stuck()
    other = CollectiveCall(**{**vars(call), "root": 1})
    deadlock = find_deadlock(call, 1, other, 3.0, answers)
    assert [wait.sentence for wait in deadlock.waits] == [
        "rank 0 waits to send message 1 (32 B) to rank 1, which never asks for it",
        "rank 1 waits to send message 1 (32 B) to rank 0, which never asks for it",
    ]
    assert deadlock.circle == [0, 1]
    assert deadlock.finished == []
    assert describe_call(other) == "broadcast with root 1 by tree"
    explanation = build_explanation(call, answers, deadlock)
    assert explanation.timing is None
    assert [move.received_ns for move in explanation.playback.moves] == [None, None]


def test_a_peer_that_has_left():
    call, answers = stuck()
    answers[1]["messages"], answers[1]["events"] = [], []
    deadlock = find_deadlock(call, 1, call, 3.0, answers)
    assert deadlock.waits[0].sentence.endswith("which has left its call and never asks for it")
    assert (deadlock.circle, deadlock.finished) == ([], [1])


@pytest.mark.parametrize(
    ("waits_for", "circle"),
    [({}, []), ({0: 1}, []), ({0: 1, 1: 0}, [0, 1]), ({0: 1, 1: 2, 2: 3, 3: 1}, [1, 2, 3])],
)
def test_circles(waits_for, circle):
    assert find_circle(waits_for) == circle


def test_names_go_on_after_z():
    assert name_pieces(28)[24:] == ["y", "z", "a2", "b2"]
