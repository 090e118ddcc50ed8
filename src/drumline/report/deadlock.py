"""`Deadlock`: which rank waits for which message of whom, from the notes of ranks that gave up.

A rank that was stuck has one message that it had begun to wait for and never got past. From rank to
peer these waits are a graph; where it comes back to a rank, those ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drumline.core.formatting import format_bytes
from drumline.core.schedule import ROOTED, Call
from drumline.report.holdings import Answer


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One rank's last word: the message at which it was stuck."""

    rank: int
    kind: str
    """send or recv"""
    peer: int
    number: int
    """the first, second, … message between the two in that direction"""
    nbytes: int
    peer_waits: bool
    """whether the peer is stuck too; else it has left its call"""

    @property
    def sentence(self) -> str:
        """Say it in words."""
        size = format_bytes(self.nbytes)
        if self.kind == "send":
            deed = f"send message {self.number} ({size}) to rank {self.peer}"
            never = "asks for it"
        else:
            deed = f"receive message {self.number} ({size}) from rank {self.peer}"
            never = "sends it"
        why = "never" if self.peer_waits else "has left its call and never"
        return f"rank {self.rank} waits to {deed}, which {why} {never}"


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """How the ranks of a call came to a stop."""

    call: Call
    odd_rank: int
    odd_call: Call
    waits: list[Wait]
    circle: list[int]
    """ranks that wait for each other in turn; empty where there is no circle"""
    finished: list[int]
    checked: str
    """what a communicator says that compares calls first"""
    patience_s: float


def find_deadlock(
    call: Call, odd_rank: int, odd_call: Call, patience_s: float, answers: Sequence[Answer]
) -> Deadlock:
    """Read from the ranks' notes who waits for whom."""
    stuck = {answer["rank"]: note for answer in answers if (note := _stuck_at(answer)) is not None}
    waits = [
        Wait(
            rank=rank,
            kind=note["kind"],
            peer=note["peer"],
            number=note["sequence"] + 1,
            nbytes=note["nbytes"],
            peer_waits=note["peer"] in stuck,
        )
        for rank, note in sorted(stuck.items())
    ]
    return Deadlock(
        call=call,
        odd_rank=odd_rank,
        odd_call=odd_call,
        waits=waits,
        circle=find_circle({wait.rank: wait.peer for wait in waits}),
        finished=[answer["rank"] for answer in answers if answer["rank"] not in stuck],
        checked=next((a["checked"] for a in answers if a["checked"]), ""),
        patience_s=patience_s,
    )


def find_circle(waits_for: dict[int, int]) -> list[int]:
    """Return ranks of which each waits for the next and the last for the first."""
    for start in sorted(waits_for):
        way, rank = [start], waits_for[start]
        while rank in waits_for and rank not in way:
            way.append(rank)
            rank = waits_for[rank]
        if rank == start:
            return way
    return []


def tell_call(call: Call) -> str:
    """Write a call in a few words."""
    root = f" with root {call.root}" if call.collective in ROOTED else ""
    return f"{call.collective}{root} by {call.algorithm}"


def _stuck_at(answer: Answer) -> dict[str, Any] | None:
    """The message that a rank had begun to wait for and never got past."""
    waiting = (
        note
        for note in answer["messages"]
        if note["waited_ns"] is not None and note["ended_ns"] is None
    )
    return next(waiting, None)
