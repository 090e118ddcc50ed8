"""What a rank held at each moment of a recorded call, as pieces and whose values they hold.

A rank's answer has, for each room, stretches of elements and their owners after every event that
changed them. Here they become pieces: the largest parts that always moved as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from drumline.core.schedule import Call

Answer = dict[str, Any]
"""what one rank left"""
Pieces = list[tuple[int, int]]
"""the first element of each piece, and the one after its last"""


class Content(NamedTuple):
    """A piece, by its number, and whose values it holds: one bit per rank."""

    piece: int
    owners: int


@dataclass(frozen=True)
class Row:
    """One buffer of a rank, piece by piece; None where it is empty."""

    name: str
    cells: list[Content | None]


@dataclass(frozen=True)
class Holding:
    """What a rank holds: its buffers, and what lies in rooms of the algorithm beside them."""

    rows: list[Row]
    beside: list[Content]


class History:
    """What one rank held, look by look."""

    def __init__(self, answer: Answer) -> None:
        self.rank = answer["rank"]
        self.rooms = answer["rooms"]
        self.events = answer["events"]
        self.messages = answer["messages"]
        self.looks = [(look["events"], look["room"], look["runs"]) for look in answer["held"]]
        self.message_bounds = {
            bound
            for number in range(len(self.messages))
            for _, element, count, _ in self.carried(number)
            for bound in (element, element + count)
        }

    def at(self, events: int) -> dict[int, list[list[int]]]:
        """What each room held after so many events."""
        held: dict[int, list[list[int]]] = {}
        for after, room, runs in self.looks:
            if after <= events:
                held[room] = runs
        return held

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

    def holding(self, steps: Mapping[int, int], step: int, pieces: Pieces, call: Call) -> Holding:
        """What this rank held when the messages of a step were taken in; each note has a step."""
        held = self.at(self._moment(steps, step))
        rows, beside = [], []
        for place, room in enumerate(self.rooms):
            runs = held.get(place, [])
            if room["name"].startswith("inbox"):
                beside += [content for run in runs for content in contents(run, pieces)]
            else:
                rows.append(Row(room["name"], _lay_out(runs, room["elements"], pieces, call)))
        shown = {cell for row in rows for cell in row.cells if cell is not None}
        return Holding(rows, _news(beside, shown))

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


def contents(run: Sequence[int], pieces: Pieces) -> Iterator[Content]:
    """Tell a stretch of elements as pieces."""
    _, element, count, owners = run
    for number, (start, end) in enumerate(pieces):
        if element <= start and end <= element + count:
            yield Content(number, owners)


def _lay_out(
    runs: Sequence[Sequence[int]], elements: int, pieces: Pieces, call: Call
) -> list[Content | None]:
    """Put a room's content in the order in which it lies there, with gaps."""
    cells: list[Content | None] = []
    end = 0
    for run in [*runs, (elements, 0, 0, 0)]:
        whole = elements == call.nbytes // call.element_bytes
        gap = [p for p in pieces if end <= p[0] and p[1] <= run[0]] if whole else [(end, run[0])]
        cells += [None] * (len(gap) if run[0] > end else 0)
        cells += list(contents(run, pieces))
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
