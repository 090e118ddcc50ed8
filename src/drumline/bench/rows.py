"""What the turns of a bench come to: a row for each algorithm, backend, number of ranks and size.

A turn's time is that of its slowest rank: until the last rank has begun it waits, from then on it
transfers. All ranks have met before, so what they wait is how far apart they came out of that.

What the time is held against:

*link share*: bytes that the algorithm moves over the busiest link ÷ the link's rate ÷ the time. 1
is its limit. For all_reduce by chunked_ring of b bytes on n nodes: 2(n−1)/n · b / rate ÷ time.
Small tensors can pass it: the two frames that a token bucket holds are not held back.

*alpha, beta*: fitted to all sizes of an algorithm on a backend, t = alpha · rounds + beta · bytes
(`drumline.core.cost`). What the backend itself does is not known: `native`, and what is made of the
backend's other collectives, count as one round, of the bytes that no algorithm can do without, so
their alpha is that of a call and not of a message.

*predicted*: from a fit on the other sizes alone, so that no size predicts itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from drumline.core.bench import BY_BACKEND, ELEMENT_BYTES
from drumline.core.cost import AlphaBeta, Path, Point, bandwidths, bus_factor, fit, waiting_path
from drumline.core.nodes import NodePlan
from drumline.core.schedule import Call, plan, whole_elements
from drumline.report.interval import quartile_interval


@dataclass(frozen=True, kw_only=True)
class Row:
    """One collective by one algorithm on one backend, at one size."""

    collective: str
    algorithm: str
    backend: str
    ranks: int
    nodes: int
    size: int
    """what was measured, in bytes"""
    asked_size: int
    """what was asked for: parts are equal, so that up to one element more for each was measured"""
    rounds: int
    """how often it was measured"""
    times_s: list[float]
    """each of them, by round: rivals of one size can be compared within a round"""
    median_s: float
    low_s: float
    """first quartile"""
    high_s: float
    """third quartile"""
    wait_s: float
    """of the slowest rank, until the last has begun (median)"""
    transfer_s: float
    """of the same rank, from then on (median)"""
    algorithm_bandwidth: float
    """bytes/s, as nccl-tests has it; so is the next"""
    bus_bandwidth: float
    wire_bytes: list[int] | None
    """what each node put on its interface in one call, headers and acknowledgements included; on
    one host the loopback's, of all ranks together"""
    payload_bytes: list[int] | None
    """what each node sends to others by the formulas; None where the backend does as it likes"""
    link_share: float | None
    """of the limit that the busiest link sets; None where no link is shaped"""
    predicted_s: float | None = None
    prediction_error: float | None = None
    """predicted over measured, less 1"""

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Alpha and beta of one algorithm on one backend."""

    collective: str
    algorithm: str
    backend: str
    ranks: int
    sizes: int
    """how many sizes it is fitted to; two leave nothing over to tell an error from"""
    alpha_beta: AlphaBeta

    @property
    def errors(self) -> tuple[float, float] | None:
        """The standard errors of alpha and beta, where they can be told."""
        found = self.alpha_beta.alpha_error_s, self.alpha_beta.beta_error_s_per_byte
        return found if self.sizes > 2 else None

    def to_json(self) -> dict[str, Any]:
        """Return the fit as plain values."""
        who = {key: value for key, value in vars(self).items() if key != "alpha_beta"}
        alpha_error, beta_error = self.errors or (None, None)
        return {
            **who,
            "alpha_s": self.alpha_beta.alpha_s,
            "beta_s_per_byte": self.alpha_beta.beta_s_per_byte,
            "alpha_error_s": alpha_error,
            "beta_error_s_per_byte": beta_error,
        }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return first quartile, median and third quartile; one value alone is all three."""
    found = quartile_interval(values)
    if found.low is None or found.high is None:
        return found.middle, found.middle, found.middle
    return found.low, found.middle, found.high


def build_rows(
    collective: str, answers: Sequence[Mapping[str, Any]], plans: Sequence[NodePlan]
) -> list[Row]:
    """Work out the rows of all turns, in the order in which they first came."""
    ranks, nodes = len(answers), max(1, len(plans))
    workers = ranks // nodes
    turns: dict[tuple[str, str, int], list[int]] = {}
    for number, turn in enumerate(answers[0]["turns"]):
        turns.setdefault((turn["algorithm"], turn["backend"], turn["size"]), []).append(number)
    rows = []
    for (algorithm, backend, size), numbers in turns.items():
        call = Call(
            collective=collective,
            algorithm=algorithm,
            ranks=ranks,
            elements=whole_elements(collective, ranks, size, ELEMENT_BYTES),
            ranks_per_node=workers,
        )
        parts = [_split([each["turns"][number] for each in answers]) for number in numbers]
        times = [wait + transfer for wait, transfer in parts]
        low, median, high = quartiles(times)
        algorithm_bandwidth, bus_bandwidth = bandwidths(collective, ranks, call.nbytes, median)
        leaders = answers[::workers]  # ranks of one node read the same counter
        wire = [[each["turns"][number]["wire"] for number in numbers] for each in leaders]
        counted = all(None not in each for each in wire)
        limit = limit_s(call, plans)
        rows.append(
            Row(
                collective=collective,
                algorithm=algorithm,
                backend=backend,
                ranks=ranks,
                nodes=nodes,
                size=call.nbytes,
                asked_size=size,
                rounds=len(times),
                times_s=times,
                median_s=median,
                low_s=low,
                high_s=high,
                wait_s=statistics.median(wait for wait, _ in parts),
                transfer_s=statistics.median(transfer for _, transfer in parts),
                algorithm_bandwidth=algorithm_bandwidth,
                bus_bandwidth=bus_bandwidth,
                wire_bytes=[int(statistics.median(each)) for each in wire] if counted else None,
                payload_bytes=payload(call, nodes),
                link_share=None if limit is None else limit / median,
            )
        )
    return sorted(rows, key=lambda row: row.asked_size)


def _split(turn: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return what the slowest rank of a turn waited and transferred, in seconds."""
    slowest = max(turn, key=lambda rank: rank["ns"])
    last = max(rank["began"] for rank in turn)
    # of a broadcast, a rank may be done before the last has begun
    wait = min(last - slowest["began"], slowest["ns"])
    return wait / 1e9, (slowest["ns"] - wait) / 1e9


def payload(call: Call, nodes: int) -> list[int] | None:
    """Return what each node sends to the others; on one node, what all ranks send each other."""
    if call.algorithm in BY_BACKEND:
        return None
    workers = call.ranks // nodes
    sent = [0] * nodes
    for message in (message for now in plan(call) for message in now):
        home = message.source // workers
        if nodes == 1 or message.target // workers != home:
            sent[home] += message.size
    return sent


def limit_s(call: Call, plans: Sequence[NodePlan]) -> float | None:
    """Return the least time that the shaped links allow; None where no link is shaped.

    Each node's link carries what its ranks send to other nodes, and at the same time what they
    receive; the one that takes longest is the limit. What the backend does itself is taken for an
    algorithm that moves as few bytes as any can.
    """
    rates = [each.rate for each in plans]
    if not rates or all(rate is None for rate in rates):
        return None
    out, back = [0.0] * len(rates), [0.0] * len(rates)
    if call.algorithm in BY_BACKEND:
        out = back = [_least_bytes(call, len(rates))] * len(rates)
    else:
        workers = call.ranks // len(rates)
        for message in (message for now in plan(call) for message in now):
            source, target = message.source // workers, message.target // workers
            if source != target:
                out[source] += message.size
                back[target] += message.size
    times = [
        8 * max(sent, received) / rate
        for sent, received, rate in zip(out, back, rates, strict=True)
        if rate is not None
    ]
    return max(times)


def _least_bytes(call: Call, nodes: int) -> float:
    """What must cross a node's link, whatever the algorithm: nccl-tests' factor, between nodes."""
    return call.nbytes * bus_factor(call.collective, nodes)


def path_of(row: Row) -> Path:
    """Return the rounds and bytes that a row's time is made of."""
    if row.algorithm in BY_BACKEND:
        return Path(1, round(row.size * bus_factor(row.collective, row.ranks)))
    return waiting_path(
        Call(
            collective=row.collective,
            algorithm=row.algorithm,
            ranks=row.ranks,
            elements=row.size // ELEMENT_BYTES,
            ranks_per_node=row.ranks // row.nodes,
        )
    )


def fit_rows(rows: Iterable[Row]) -> list[Fit]:
    """Fit alpha and beta for each algorithm on each backend that has two sizes at least."""
    fits = []
    for (algorithm, backend), own in _by_rival(rows).items():
        alpha_beta = _fit(own)
        if alpha_beta is not None:
            first = own[0]
            who = {"collective": first.collective, "algorithm": algorithm, "backend": backend}
            fits.append(Fit(**who, ranks=first.ranks, sizes=len(own), alpha_beta=alpha_beta))
    return fits


def predict_rows(rows: Iterable[Row]) -> list[Row]:
    """Add to each row what a fit on the rival's other sizes predicts for it."""
    rows = list(rows)
    rivals = _by_rival(rows)
    return [_predict(row, rivals[row.algorithm, row.backend]) for row in rows]


def _predict(row: Row, own: Sequence[Row]) -> Row:
    others = [other for other in own if other.size != row.size]
    alpha_beta = _fit(others)
    if alpha_beta is None:
        return row
    seconds = alpha_beta.seconds(path_of(row))
    return replace(row, predicted_s=seconds, prediction_error=seconds / row.median_s - 1)


def _by_rival(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.algorithm, row.backend), []).append(row)
    return found


def _fit(rows: Sequence[Row]) -> AlphaBeta | None:
    points = [Point(*path_of(row), row.median_s) for row in rows]
    try:
        return fit(points)
    except ValueError:  # one size alone, or several of the same shape
        return None
