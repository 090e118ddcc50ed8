"""What a collective costs: messages and bytes per rank, and the time that alpha and beta predict.

A message of m bytes takes alpha + beta·m: alpha is what it costs to send anything at all, beta what
each byte adds. A collective takes alpha·rounds + beta·bytes, both counted along the critical path:
rounds of messages that wait for each other, and in each round the largest message. Exact numbers
for any n come from `schedules.collectives`; where n is a power of two (l = log2 n) and divides b:

    collective       algorithm          rounds         critical bytes      sent by the busiest rank
    broadcast        linear             n−1            (n−1)·b             (n−1)·b
    reduce           tree               l              l·b                 l·b down, b up
                     ring               n−1            (n−1)·b             b
                     chunked_ring       n−2+k          (n−2+k)/k·b         b, in k segments
    scatter          linear             n−1            (n−1)/n·b           (n−1)/n·b
    gather           tree               l              (n−1)/n·b           (n−1)/n·b, b/2 up
    all_gather       linear, ring       n−1            (n−1)/n·b           (n−1)/n·b
    reduce_scatter   halving_doubling   l              (n−1)/n·b           (n−1)/n·b
    all_to_all       linear, ring       n−1            (n−1)/n·b           (n−1)/n·b
    all_reduce       linear             2(n−1)         2(n−1)·b            (n−1)·b
                     tree               2l             2l·b                l·b
                     ring               n−1            (n−1)·b             (n−1)·b
                     chunked_ring       2(n−1)         2(n−1)/n·b          2(n−1)/n·b
                     halving_doubling   2l             2(n−1)/n·b          2(n−1)/n·b
    barrier          linear             2(n−1)         one byte a round
                     tree               2l
                     dissemination      l

`hierarchical` is made of those: with m ranks a node and k nodes, all_reduce is a tree up and down
among m, and a chunked ring among k. Pieces above 64 KiB travel around a ring in segments, two at
least, of 1 MiB at most, each a message; the table counts them as one. b is the size as nccl-tests
counts it: that of the largest buffer of a rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from drumline.schedules.collectives import IN_PARTS, CollectiveCall, plan
from drumline.schedules.rounds import SMALL_BYTES

_ON_A_RING = frozenset({"ring", "chunked_ring", "hierarchical"})
_IN_PIECES = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


@dataclass(frozen=True)
class RankTraffic:
    """What one rank sends and receives in a call."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


class CriticalPath(NamedTuple):
    """The critical path of a call: what its time is made of."""

    rounds: int
    nbytes: int


class Point(NamedTuple):
    """One measurement: so many rounds with so many bytes in all took so long."""

    rounds: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """What a message costs, and what each of its bytes adds; errors are standard errors."""

    alpha_s: float
    beta_s_per_byte: float
    alpha_error_s: float = 0.0
    beta_error_s_per_byte: float = 0.0

    def seconds(self, path: CriticalPath) -> float:
        """Predict how long a critical path takes."""
        return self.alpha_s * path.rounds + self.beta_s_per_byte * path.nbytes


def traffic(call: CollectiveCall) -> list[RankTraffic]:
    """Return what each rank sends and receives in the schedule of a collective, in rank order."""
    sent: list[list[int]] = [[] for _ in range(call.ranks)]
    received: list[list[int]] = [[] for _ in range(call.ranks)]
    for now in plan(call):
        for message in now:
            sent[message.source].append(message.size)
            received[message.target].append(message.size)
    return [
        RankTraffic(len(out), sum(out), len(come), sum(come))
        for out, come in zip(sent, received, strict=True)
    ]


def critical_path(call: CollectiveCall) -> CriticalPath:
    """Return a schedule's rounds, and the bytes of each one's largest message, added up."""
    rounds = plan(call)
    return CriticalPath(len(rounds), sum(max(message.size for message in now) for now in rounds))


def waiting_path(call: CollectiveCall) -> CriticalPath:
    """Return a schedule's critical path with the segments of a piece on a ring as one round.

    They follow each other on the link, and none waits for the one before it to be answered: what
    such a call pays alpha for is the pieces that wait for each other, however long they are.
    """
    path = critical_path(call)
    if call.algorithm not in _ON_A_RING or call.collective not in _IN_PIECES:
        return path
    whole = min(call.elements, SMALL_BYTES // call.element_bytes)  # no piece has two segments
    return CriticalPath(critical_path(replace(call, elements=whole)).rounds, path.nbytes)


def bus_factor(collective: str, n: int) -> float:
    """Return a collective's cost factor from algorithm to bus bandwidth, as nccl-tests has it.

    That is the share of the size that must cross a rank's link whatever the algorithm, so that the
    result can be held against the link's rate.
    """
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if collective in IN_PARTS else 1.0


def bandwidths(collective: str, n: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """Return a collective's algorithm and bus bandwidth as nccl-tests defines them, in bytes/s."""
    algorithm = nbytes / seconds if seconds > 0 else 0.0
    return algorithm, algorithm * bus_factor(collective, n)


def fit(points: Iterable[Point]) -> AlphaBeta:
    """Fit the cost model's alpha and beta to measurements: least relative errors (in squares).

    Neither comes out negative: where it would, it is 0 and the other one is fitted alone. It is a
    ValueError if there are fewer than two points, or all have the same rounds per byte.
    """
    scaled = [(p.rounds / p.seconds, p.nbytes / p.seconds) for p in points if p.seconds > 0]
    # the sums that the normal equations of alpha·x + beta·y = 1 are made of
    aa, ab, bb = (sum(z[i] * z[j] for z in scaled) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(z[i] for z in scaled) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if len(scaled) < 2 or determinant <= 1e-12 * aa * bb:
        raise ValueError("alpha and beta need measurements of two sizes at least")
    alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b / bb
    elif beta < 0:
        alpha, beta = a / aa, 0.0
    variance = sum((1 - alpha * x - beta * y) ** 2 for x, y in scaled) / max(1, len(scaled) - 2)
    return AlphaBeta(
        alpha_s=alpha,
        beta_s_per_byte=beta,
        alpha_error_s=(variance * bb / determinant) ** 0.5,
        beta_error_s_per_byte=(variance * aa / determinant) ** 0.5,
    )
