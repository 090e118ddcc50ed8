"""`Playback`: from what each rank noted to the steps of a collective, and what ranks hold in each.

A rank's notes are messages that it posted and waited for, in its own order (`comm/recording.py`).
Put together by sender, receiver and number they are the messages of the whole call. A message is in
step s where its sender had taken in something of step s−1 before it sent it, and never before one
that went the same way. A receiver takes messages in the order in which it waits for them, and in an
exchange not before it sends its own. So a step is what could happen at the same time.

What a rank held is told in pieces, the largest parts that always moved as one, and by whose values
are in them: its answer has, for each room, stretches of elements and their owners after every event
that changed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from drumline.schedules.collectives import CollectiveCall

Answer = dict[str, Any]
"""what one rank left"""
Pieces = list[tuple[int, int]]
"""the first element of each piece, and the one after its last"""


class Content(NamedTuple):
    """A piece, by its number, and whose values it holds: one bit per rank."""

    piece: int
    owners: int


@dataclass(frozen=True)
class BufferRow:
    """One buffer of a rank, piece by piece; None where it is empty."""

    name: str
    cells: list[Content | None]


@dataclass(frozen=True)
class RankContents:
    """What a rank holds: its buffers, and what lies in rooms of the algorithm beside them."""

    rows: list[BufferRow]
    beside: list[Content]


class History:
    """What one rank held, look by look."""

    def __init__(self, answer: Answer) -> None:
        self.rooms = answer["rooms"]
        self.events = answer["events"]
        self.messages = answer["messages"]
        self.looks = [(look["events"], look["room"], look["runs"]) for look in answer["held"]]

    def at(self, events: int) -> dict[int, list[list[int]]]:
        """What each room held after so many events: what was seen last."""
        return {room: runs for after, room, runs in self.looks if after <= events}

    def carried(self, number: int) -> list[list[int]]:
        """What a message took along, or brought: the stretch of its room that it covers."""
        note = self.messages[number]
        what = "posted" if note["kind"] == "send" else "done"
        if [what, number] not in self.events:
            return []
        moment = self.events.index([what, number]) + (what == "done")
        start, end = note["start"], note["start"] + note["count"]
        parts = []
        for at, element, count, owners in self.at(moment).get(note["room"], []):
            first, after = max(at, start), min(at + count, end)
            if first < after:
                parts.append([first, element + first - at, after - first, owners])
        return parts

    def holding(
        self, steps: Mapping[int, int], step: int, pieces: Pieces, call: CollectiveCall
    ) -> RankContents:
        """What this rank held when the messages of a step were taken in; each note has a step."""
        held = self.at(self._moment(steps, step))
        rows, beside = [], []
        for place, room in enumerate(self.rooms):
            runs = held.get(place, [])
            if room["name"].startswith("inbox"):
                beside += [content for run in runs for content in _contents(run, pieces)]
            else:
                rows.append(BufferRow(room["name"], _lay_out(runs, room["elements"], pieces, call)))
        shown = {cell for row in rows for cell in row.cells if cell is not None}
        return RankContents(rows, _news(beside, shown))

    def _moment(self, steps: Mapping[int, int], step: int) -> int:
        """How many events had passed when all of this step was in, and nothing of the next.

        What was received is combined before the next message leaves or arrives, so the moment is
        the last one before that.
        """
        moment = 0
        for place, (what, number) in enumerate(self.events):
            if what == "done" and self.messages[number]["kind"] == "recv":
                if steps.get(number, 0) > step:
                    break
                moment = place + 1
        while moment < len(self.events):
            what, number = self.events[moment]
            moves = (what == "posted") == (self.messages[number]["kind"] == "send")
            if moves and steps.get(number, 0) > step:
                break
            moment += 1
        return moment


def _contents(run: Sequence[int], pieces: Pieces) -> Iterator[Content]:
    """Tell a stretch of elements as pieces."""
    _, element, count, owners = run
    for number, (start, end) in enumerate(pieces):
        if element <= start and end <= element + count:
            yield Content(number, owners)


def _lay_out(
    runs: Sequence[Sequence[int]], elements: int, pieces: Pieces, call: CollectiveCall
) -> list[Content | None]:
    """Put a room's content in the order in which it lies there, with gaps."""
    cells: list[Content | None] = []
    end = 0
    for run in [*runs, (elements, 0, 0, 0)]:
        whole = elements == call.nbytes // call.element_bytes
        gap = [p for p in pieces if end <= p[0] and p[1] <= run[0]] if whole else [(end, run[0])]
        cells += [None] * (len(gap) if run[0] > end else 0)
        cells += list(_contents(run, pieces))
        end = run[0] + run[2]
    return cells


def _news(beside: Sequence[Content], shown: set[Content]) -> list[Content]:
    """Leave out what is part of something else that the rank holds."""
    everything = shown | set(beside)

    def covered(content: Content) -> bool:
        return any(
            other.piece == content.piece
            and other.owners != content.owners
            and other.owners & content.owners == content.owners
            for other in everything
        )

    return sorted({c for c in beside if c not in shown and not covered(c)})


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

    call: CollectiveCall
    pieces: Pieces
    moves: list[Move]
    holdings: list[list[RankContents]]
    """by step, from 0 (before anything was sent), and rank"""

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.holdings) - 1


def build_playback(call: CollectiveCall, answers: Sequence[Answer]) -> Playback:
    """Build the playback of a collective's schedule from the ranks' answers."""
    began = min(answer["recorded"][0] for answer in answers)
    moves, by_note = _match(answers, began)
    _number_steps(answers, by_note)
    histories = [History(answer) for answer in answers]
    if call.collective == "barrier":
        pieces, holdings = [(0, 1)], _arrivals(answers, by_note)
    else:
        pieces = _cut_pieces(call, histories)
        steps: list[dict[int, int]] = [{} for _ in histories]
        for (rank, number), move in by_note.items():
            steps[rank][number] = move.step
            if histories[rank].messages[number]["kind"] == "send":
                runs = histories[rank].carried(number)
                move.content = [content for run in runs for content in _contents(run, pieces)]
        ranks = list(zip(histories, steps, strict=True))
        holdings = [
            [history.holding(own, step, pieces, call) for history, own in ranks]
            for step in range(1 + max((move.step for move in moves), default=0))
        ]
    moves.sort(key=lambda move: (move.step, move.source, move.posted_ns))
    return Playback(call=call, pieces=pieces, moves=moves, holdings=holdings)


_ByNote = dict[tuple[int, int], Move]
"""each move by (rank, number of its note) of both sides"""


def _match(answers: Sequence[Answer], began: int) -> tuple[list[Move], _ByNote]:
    """Find the two sides of each message: sends come first, for receipts to find theirs."""
    sends: dict[tuple[Any, ...], Move] = {}
    by_note: _ByNote = {}
    notes = [(each["rank"], *item) for each in answers for item in enumerate(each["messages"])]
    for rank, number, note in sorted(notes, key=lambda item: item[2]["kind"] != "send"):
        sent, peer = note["kind"] == "send", note["peer"]
        source, target = (rank, peer) if sent else (peer, rank)
        key = (source, target, *note["channel"], note["sequence"])
        if sent:
            nbytes, posted_ns = note["nbytes"], note["posted_ns"] - began
            sends[key] = Move(source=source, target=target, nbytes=nbytes, posted_ns=posted_ns)
        elif key in sends and note["ended_ns"] is not None:
            sends[key].received_ns = note["ended_ns"] - began
        if key in sends:
            by_note[rank, number] = sends[key]
    return list(sends.values()), by_note


def _in_order(answers: Sequence[Answer], by_note: _ByNote) -> Iterator[tuple[int, str, str, Move]]:
    """All events of all ranks by time: (rank, posted or done, send or recv, the message)."""
    timed = []
    for answer in answers:
        for place, (what, number) in enumerate(answer["events"]):
            note = answer["messages"][number]
            at = note["posted_ns"] if what == "posted" else note["ended_ns"]
            timed.append((at, place, answer["rank"], what, number))
    for _, _, rank, what, number in sorted(timed):
        if (rank, number) in by_note:
            kind = answers[rank]["messages"][number]["kind"]
            yield rank, what, kind, by_note[rank, number]


def _number_steps(answers: Sequence[Answer], by_note: _ByNote) -> None:
    """Give each message its step; see the module's docstring."""
    taken_in = [0] * len(answers)  # the latest step of what each rank has received or sent
    sending = [0] * len(answers)  # the step in which it has last begun to send
    last: dict[tuple[int, int], int] = {}
    left: dict[int, int] = {}
    for rank, what, kind, move in _in_order(answers, by_note):
        if (what, kind) == ("posted", "send"):
            sending[rank] = taken_in[rank] + 1
            way = (move.source, move.target)
            move.step = max(sending[rank], last.get(way, 0) + 1)
            last[way] = left[id(move)] = move.step
        elif (what, kind) == ("done", "send"):
            taken_in[rank] = max(taken_in[rank], left[id(move)])
        elif what == "done":
            move.step = taken_in[rank] = max(move.step, taken_in[rank], sending[rank])


def _arrivals(answers: Sequence[Answer], by_note: _ByNote) -> list[list[RankContents]]:
    """What ranks know in a barrier: who has come to it, their own and what messages tell them."""
    knows = [1 << rank for rank in range(len(answers))]
    steps = max((move.step for move in by_note.values()), default=0)
    known = [list(knows) for _ in range(steps + 1)]
    for rank, what, kind, move in _in_order(answers, by_note):
        if (what, kind) == ("posted", "send"):
            move.content = [Content(0, knows[rank])]
        elif (what, kind) == ("done", "recv"):
            knows[rank] |= move.content[0].owners
            for step in range(move.step, steps + 1):
                known[step][rank] |= knows[rank]
    return [
        [RankContents([BufferRow("has heard of", [Content(0, k)])], []) for k in now]
        for now in known
    ]


def _cut_pieces(call: CollectiveCall, histories: Sequence[History]) -> Pieces:
    """Cut where any rank ever held one thing on one side and another on the other."""
    runs = [run for history in histories for _, _, held in history.looks for run in held]
    for history in histories:
        runs += [run for note in range(len(history.messages)) for run in history.carried(note)]
    bounds = {0, call.nbytes // call.element_bytes}
    bounds |= {bound for _, element, count, _ in runs for bound in (element, element + count)}
    return list(pairwise(sorted(bounds)))
