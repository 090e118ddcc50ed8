"""`Explanation`: a recorded collective with its accounts, measured and predicted, or its deadlock.

Everything that the terminal and the page show of `drumline explain` is in here, and all of it is
computed from what the ranks left.

A rank in a deadlock has one message that it had begun to wait for and never got past. From rank to
peer these waits are a graph; where it has a cycle, those ranks wait for each other.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from drumline.core.formatting import format_bytes
from drumline.schedules import cost
from drumline.schedules.collectives import ROOTED, CollectiveCall
from drumline.schedules.playback import Answer, Playback, build_playback

_NANO = 1e-9
_TURNS = 4  # that make a point


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
        """Say it as a sentence."""
        sends = self.kind == "send"
        deed, by, answer = ("send", "to", "asks for") if sends else ("receive", "from", "sends")
        why = "never" if self.peer_waits else "has left its call and never"
        return (
            f"rank {self.rank} waits to {deed} message {self.number} "
            f"({format_bytes(self.nbytes)}) {by} rank {self.peer}, which {why} {answer} it"
        )


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """How the ranks of a call came to a stop."""

    call: CollectiveCall
    odd_rank: int
    odd_call: CollectiveCall
    waits: list[Wait]
    circle: list[int]
    """ranks that wait for each other in turn; empty where there is no circle"""
    finished: list[int]
    checked: str
    """what a communicator says that compares calls first"""
    patience_s: float

    def to_json(self) -> dict[str, object]:
        """Return all of it as plain values, calls and waits as sentences."""
        plain = asdict(self)
        del plain["call"], plain["odd_call"]
        return {
            **plain,
            "calls": [describe_call(self.call), describe_call(self.odd_call)],
            "waits": [{**asdict(wait), "sentence": wait.sentence} for wait in self.waits],
        }


def find_deadlock(
    call: CollectiveCall,
    odd_rank: int,
    odd_call: CollectiveCall,
    patience_s: float,
    answers: Sequence[Answer],
) -> Deadlock:
    """Read from the ranks' notes on an explained collective who waits for whom."""
    stuck = {
        answer["rank"]: note
        for answer in answers
        for note in reversed(answer["messages"])
        if note["waited_ns"] is not None and note["ended_ns"] is None
    }
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
    """Return the circle of a deadlock: each rank waits for the next, the last for the first."""
    for start in sorted(waits_for):
        way, rank = [start], waits_for[start]
        while rank in waits_for and rank not in way:
            way.append(rank)
            rank = waits_for[rank]
        if rank == start:
            return way
    return []


def describe_call(call: CollectiveCall) -> str:
    """Write the call that is explained: `broadcast with root 0 by tree`."""
    root = f" with root {call.root}" if call.collective in ROOTED else ""
    return f"{call.collective}{root} by {call.algorithm}"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long it took, and how long it should have."""

    measured_s: float
    """the median over several calls without notes: from the last rank's start to the last's end"""
    shortest_s: float
    longest_s: float
    recorded_s: float
    """of the one call whose messages are shown"""
    alpha_beta: cost.AlphaBeta
    round_bytes: list[int]
    """the sizes that alpha and beta were measured with"""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a real run of a collective did, and what it cost."""

    playback: Playback
    counted: list[cost.RankTraffic]
    predicted: list[cost.RankTraffic]
    path: cost.CriticalPath
    timing: Timing | None = None
    """None where it never came to an end"""
    deadlock: Deadlock | None = None

    @property
    def call(self) -> CollectiveCall:
        """The call that it is about."""
        return self.playback.call

    @property
    def predicted_s(self) -> float:
        """The time that alpha and beta predict."""
        return self.timing.alpha_beta.seconds(self.path) if self.timing is not None else 0.0

    @property
    def crowd(self) -> str:
        """What to know where ranks outnumber cores, and measured and predicted times both jump."""
        ranks, cores = self.call.ranks, os.cpu_count() or 1
        if ranks <= cores:
            return ""
        shared = "one core" if cores == 1 else f"{cores} cores"
        return f"{ranks} ranks share {shared}: most of alpha is waiting for a turn on one"

    def to_json(self) -> dict[str, object]:
        """Return all of it as plain values."""
        call, playback = self.call, self.playback
        names = name_pieces(len(playback.pieces))
        return {
            "call": {**asdict(call), "nbytes": call.nbytes},
            "pieces": [
                {"name": name, "first": first, "elements": end - first}
                for name, (first, end) in zip(names, playback.pieces, strict=True)
            ],
            "steps": playback.steps,
            "moves": [asdict(move) for move in playback.moves],
            "holdings": [[asdict(held) for held in now] for now in playback.holdings],
            "traffic": [
                {"rank": rank, "counted": asdict(self.counted[rank]), "predicted": asdict(each)}
                for rank, each in enumerate(self.predicted)
            ],
            "rounds": self.path.rounds,
            "critical_bytes": self.path.nbytes,
            "timing": None if self.timing is None else self._plain_timing(self.timing),
            "deadlock": None if self.deadlock is None else self.deadlock.to_json(),
        }

    def _plain_timing(self, timing: Timing) -> dict[str, object]:
        call, plain = self.call, asdict(timing)
        own, bus = cost.bandwidths(call.collective, call.ranks, call.nbytes, timing.measured_s)
        alpha_beta, round_bytes = plain.pop("alpha_beta"), plain.pop("round_bytes")
        expected = {"predicted_s": self.predicted_s, "crowd": self.crowd, **alpha_beta}
        rates = {"algorithm_bandwidth": own, "bus_bandwidth": bus}
        return {**plain, **expected, "round_bytes": round_bytes, **rates}


def build_explanation(
    call: CollectiveCall, answers: Sequence[Answer], deadlock: Deadlock | None = None
) -> Explanation:
    """Build the explanation of a collective from what its recorded ranks have left."""
    return Explanation(
        playback=build_playback(call, answers),
        counted=[count_traffic(answer) for answer in answers],
        predicted=cost.traffic(call),
        path=cost.critical_path(call),
        timing=None if deadlock is not None else _time(answers),
        deadlock=deadlock,
    )


def count_traffic(answer: Answer) -> cost.RankTraffic:
    """Count the messages that a rank of an explained collective has sent and received."""
    done = [note for note in answer["messages"] if note["ended_ns"] is not None]
    sent = [note["nbytes"] for note in done if note["kind"] == "send"]
    received = [note["nbytes"] for note in done if note["kind"] == "recv"]
    return cost.RankTraffic(
        sent_messages=len(sent),
        sent_bytes=sum(sent),
        received_messages=len(received),
        received_bytes=sum(received),
    )


def name_pieces(count: int) -> list[str]:
    """Name the pieces of an explained collective a, b, …, z, a2, b2, …"""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [letters[k % 26] + (str(k // 26 + 1) if k >= 26 else "") for k in range(count)]


def _time(answers: Sequence[Answer]) -> Timing:
    lasted = _lengths([answer["spans"] for answer in answers])
    points = list(_points(answers))
    return Timing(
        measured_s=statistics.median(lasted),
        shortest_s=min(lasted),
        longest_s=max(lasted),
        recorded_s=_length([answer["recorded"] for answer in answers]),
        alpha_beta=cost.fit(points) if points else cost.AlphaBeta(alpha_s=0.0, beta_s_per_byte=0.0),
        round_bytes=sorted({timed["nbytes"] for timed in answers[0]["rounds"]}),
    )


def _points(answers: Sequence[Answer]) -> Iterator[cost.Point]:
    """What alpha and beta are fitted to: medians of a few turns, as the collective's time is."""
    for number, timed in enumerate(answers[0]["rounds"]):
        lasted = _lengths([answer["rounds"][number]["spans"] for answer in answers])
        for first in range(0, len(lasted), _TURNS):
            seconds = statistics.median(lasted[first : first + _TURNS])
            yield cost.Point(timed["rounds"], timed["rounds"] * timed["nbytes"], seconds)


def _lengths(spans: Sequence[Sequence[Sequence[int]]]) -> list[float]:
    """How long each turn took, from what each rank noted of it."""
    return [_length(turn) for turn in zip(*spans, strict=True)]


def _length(spans: Sequence[Sequence[int]]) -> float:
    """From the moment that the last rank was there to the last one's end."""
    return (max(end for _, end in spans) - max(began for began, _ in spans)) * _NANO
