"""Recordings made up by hand, as ranks would leave them."""

from __future__ import annotations

from drumline.schedules.collectives import CollectiveCall

TENSOR = [{"name": "tensor", "elements": 4}]


def note(kind, peer, start, count, posted, ended, *, room=0, sequence=0, channel=(0, 1)):
    return {
        "kind": kind,
        "peer": peer,
        "channel": list(channel),
        "sequence": sequence,
        "room": room,
        "start": start,
        "count": count,
        "nbytes": 8 * count,
        "posted_ns": posted,
        "waited_ns": posted + 1,
        "ended_ns": ended,
    }


def held(events, room, *runs):
    return {"events": events, "room": room, "runs": [list(run) for run in runs]}


def answer(rank, rooms, messages, events, looks, **more):
    return {
        "rank": rank,
        "rooms": rooms,
        "messages": messages,
        "events": [list(event) for event in events],
        "held": looks,
        "recorded": [1000, 9000],
        "spans": [[1000 + rank, 3000 + rank], [1000, 5000], [2000, 3000 + 1000 * rank]],
        "rounds": [
            {"rounds": 2, "nbytes": 8, "spans": [[0, 200_000], [50, 200_050]]},
            {"rounds": 2, "nbytes": 1008, "spans": [[0, 400_000], [50, 400_050]]},
        ],
        **more,
    }


def exchange():
    """all_reduce by halving of two ranks: each sends half, adds, and sends its sum back."""
    call = CollectiveCall(
        collective="all_reduce",
        algorithm="halving_doubling",
        ranks=2,
        elements=4,
        element_bytes=8,
    )
    rooms = [*TENSOR, {"name": "inbox 1", "elements": 2}]
    events = [
        ("posted", 0),
        ("posted", 1),
        ("done", 1),
        ("done", 0),
        ("posted", 2),
        ("posted", 3),
        ("done", 3),
        ("done", 2),
    ]
    answers = []
    for rank in (0, 1):
        own, other = 2 * rank, 2 * (1 - rank)
        one, both = 1 << rank, 0b11
        halves = {own: [own, own, 2, both], other: [other, other, 2, one]}
        answers.append(
            answer(
                rank,
                rooms,
                [
                    note("send", 1 - rank, other, 2, 1100, 2000),
                    note("recv", 1 - rank, 0, 2, 1200, 1900, room=1),
                    note("send", 1 - rank, own, 2, 2100, 3000, sequence=1),
                    note("recv", 1 - rank, other, 2, 2200, 2900, sequence=1),
                ],
                events,
                [
                    held(0, 0, (0, 0, 4, one)),
                    held(3, 1, (0, own, 2, 3 - one)),
                    held(4, 0, halves[0], halves[2]),
                    held(7, 0, (0, 0, 4, both)),
                ],
            )
        )
    return call, answers


def stuck():
    """broadcast in which both ranks think that they are the root: both only send."""
    call = CollectiveCall(
        collective="broadcast", algorithm="tree", ranks=2, elements=4, element_bytes=8
    )
    answers = [
        answer(
            rank,
            TENSOR,
            [note("send", 1 - rank, 0, 4, 1100, None)],
            [("posted", 0)],
            [held(0, 0, (0, 0, 4, 1 << rank))],
            checked="call 1 differs between ranks: <rank 0> & rank 1",
        )
        for rank in (0, 1)
    ]
    return call, answers


def tokens():
    """barrier by dissemination of two ranks: one byte each way, nothing marked."""
    call = CollectiveCall(collective="barrier", algorithm="dissemination", ranks=2, element_bytes=8)
    answers = [
        answer(
            rank,
            [{"name": "inbox 1", "elements": 1}, {"name": "inbox 2", "elements": 1}],
            [
                {**note("send", 1 - rank, 0, 1, 1100, 2000), "nbytes": 1},
                {**note("recv", 1 - rank, 0, 1, 1200, 1900, room=1), "nbytes": 1},
            ],
            [("posted", 0), ("posted", 1), ("done", 1), ("done", 0)],
            [],
        )
        for rank in (0, 1)
    ]
    return call, answers
