"""`Playback`: from what each rank noted to the steps of a collective.

A rank's notes are messages that it posted and waited for, in its own order (`comm/recording.py`).
Put together by sender, receiver and number they are the messages of the whole call. A message is in
step s where its sender had taken in something of step s−1 before it sent it, and never before one
that went the same way. A receiver takes messages in the order in which it waits for them, and in an
exchange not before it sends its own. So a step is what could happen at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from drumline.core.schedule import Call
from drumline.report.holdings import Answer, Content, History, Holding, Pieces, Row, contents


@dataclass(kw_only=True)
class Move:
    """One message from post to receipt; times in nanoseconds since the first rank began."""

    source: int
    target: int
    nbytes: int
    posted_ns: int
    received_ns: int | None = None
    """None: it never arrived"""
    content: list[Content] = field(default_factory=list)
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Playback:
    """A recorded call, ready to be shown."""

    call: Call
    pieces: Pieces
    moves: list[Move]
    holdings: list[list[Holding]]
    """by step, from 0 (before anything was sent), and rank"""

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.holdings) - 1


def build_playback(call: Call, answers: Sequence[Answer]) -> Playback:
    """Put the ranks' answers together."""
    began = min(answer["recorded"][0] for answer in answers)
    moves, by_note = _match(answers, began)
    _number_steps(answers, by_note)
    histories = [History(answer) for answer in answers]
    if call.collective == "barrier":
        pieces, holdings = [(0, 1)], _arrivals(answers, by_note)
    else:
        pieces = _cut_pieces(call, histories)
        for answer, history in zip(answers, histories, strict=True):
            _fill_moves(answer, history, by_note, pieces)
        steps = max((move.step for move in moves), default=0)
        holdings = [
            [history.holding(_steps(history, by_note), step, pieces, call) for history in histories]
            for step in range(steps + 1)
        ]
    moves.sort(key=lambda move: (move.step, move.source, move.posted_ns))
    return Playback(call=call, pieces=pieces, moves=moves, holdings=holdings)


_ByNote = dict[tuple[int, int], Move]
"""each move by (rank, number of its note) of both sides"""


def _match(answers: Sequence[Answer], began: int) -> tuple[list[Move], _ByNote]:
    """Find the two sides of each message."""
    sends: dict[tuple[Any, ...], Move] = {}
    by_note: _ByNote = {}
    for kind in ("send", "recv"):
        for answer in answers:
            rank = answer["rank"]
            for number, note in enumerate(answer["messages"]):
                if note["kind"] != kind:
                    continue
                way = (rank, note["peer"]) if kind == "send" else (note["peer"], rank)
                key = (*way, *note["channel"], note["sequence"])
                if kind == "send":
                    sends[key] = Move(
                        source=rank,
                        target=note["peer"],
                        nbytes=note["nbytes"],
                        posted_ns=note["posted_ns"] - began,
                    )
                elif key in sends and note["ended_ns"] is not None:
                    sends[key].received_ns = note["ended_ns"] - began
                if key in sends:
                    by_note[rank, number] = sends[key]
    return list(sends.values()), by_note


def _in_order(answers: Sequence[Answer]) -> Iterator[tuple[int, str, int]]:
    """All events of all ranks by time: (rank, posted or done, number of the note)."""
    timed = []
    for answer in answers:
        for place, (what, number) in enumerate(answer["events"]):
            note = answer["messages"][number]
            at = note["posted_ns"] if what == "posted" else note["ended_ns"]
            timed.append((at, place, answer["rank"], what, number))
    return ((rank, what, number) for _, _, rank, what, number in sorted(timed))


def _number_steps(answers: Sequence[Answer], by_note: _ByNote) -> None:
    """Give each message its step; see the module's docstring."""
    taken_in = [0] * len(answers)  # the latest step of what each rank has received or sent
    sending = [0] * len(answers)  # the step in which it has last begun to send
    last: dict[tuple[int, int], int] = {}
    left: dict[int, int] = {}
    for rank, what, number in _in_order(answers):
        move = by_note.get((rank, number))
        sends = answers[rank]["messages"][number]["kind"] == "send"
        if move is None:
            continue
        if what == "posted" and sends:
            sending[rank] = taken_in[rank] + 1
            way = (move.source, move.target)
            move.step = max(sending[rank], last.get(way, 0) + 1)
            last[way] = left[id(move)] = move.step
        elif what == "done" and sends:
            taken_in[rank] = max(taken_in[rank], left[id(move)])
        elif what == "done":
            move.step = taken_in[rank] = max(move.step, taken_in[rank], sending[rank])


def _steps(history: History, by_note: _ByNote) -> dict[int, int]:
    """The step of each note of a rank."""
    return {number: move.step for (rank, number), move in by_note.items() if rank == history.rank}


def _fill_moves(answer: Answer, history: History, by_note: _ByNote, pieces: Pieces) -> None:
    """Say what each message that a rank sent carried."""
    for number, note in enumerate(answer["messages"]):
        move = by_note.get((history.rank, number))
        if note["kind"] == "send" and move is not None:
            runs = history.carried(number)
            move.content = [content for run in runs for content in contents(run, pieces)]


def _arrivals(answers: Sequence[Answer], by_note: _ByNote) -> list[list[Holding]]:
    """What ranks know in a barrier: who has come to it, their own and what messages tell them."""
    knows = [1 << rank for rank in range(len(answers))]
    steps = max((move.step for move in by_note.values()), default=0)
    known = [list(knows) for _ in range(steps + 1)]
    for rank, what, number in _in_order(answers):
        move = by_note.get((rank, number))
        sends = answers[rank]["messages"][number]["kind"] == "send"
        if move is not None and what == "posted" and sends:
            move.content = [Content(0, knows[rank])]
        elif move is not None and what == "done" and not sends:
            knows[rank] |= move.content[0].owners
            for step in range(move.step, steps + 1):
                known[step][rank] |= knows[rank]
    return [[Holding([Row("has heard of", [Content(0, k)])], []) for k in now] for now in known]


def _cut_pieces(call: Call, histories: Sequence[History]) -> Pieces:
    """Cut where any rank ever held one thing on one side and another on the other."""
    bounds = {0, call.nbytes // call.element_bytes}
    for history in histories:
        for _, _, runs in history.looks:
            for _, element, count, _ in runs:
                bounds |= {element, element + count}
        bounds |= history.message_bounds
    ordered = sorted(bounds)
    return list(pairwise(ordered))
