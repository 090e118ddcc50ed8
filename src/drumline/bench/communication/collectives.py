"""`drumline bench collectives`: runs the ranks, and works out what they measured.

A turn's time is that of its slowest rank: until the last rank has begun it waits, from then on it
transfers. All ranks have met before, so what they wait is how far apart they came out of that.

What the time is held against:

*link share*: bytes that the algorithm moves over the busiest link ÷ the link's rate ÷ the time. 1
is its limit. For all_reduce by chunked_ring of b bytes on n nodes: 2(n−1)/n · b / rate ÷ time.
Small tensors can pass it: the two frames that a token bucket holds are not held back.

*alpha, beta*: fitted to all sizes of an algorithm on a backend, t = alpha · rounds + beta · bytes
(`drumline.schedules.cost`). What the backend itself does is not known: `native`, and what is made
of the backend's other collectives, count as one round, of the bytes that no algorithm can do
without, so their alpha is that of a call and not of a message.

*predicted*: from a fit on the other sizes alone, so that no size predicts itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.bench.case_runner import BenchResult, describe_machine
from drumline.bench.specs import CollectivesSpec
from drumline.core.nodes import NodePlan
from drumline.launcher.probe import Watch, launched_probe
from drumline.report.intervals import quartiles
from drumline.schedules import cost
from drumline.schedules.collectives import (
    BY_BACKEND,
    FLOAT32_BYTES,
    CollectiveCall,
    plan,
    whole_elements,
)

_BUDGET_S = 20.0
"""for all rounds together, where the user does not say how many"""


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
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


@dataclass(frozen=True, kw_only=True)
class CollectiveFit:
    """Alpha and beta of one algorithm on one backend."""

    collective: str
    algorithm: str
    backend: str
    ranks: int
    sizes: int
    """how many sizes it is fitted to; two leave nothing over to tell an error from"""
    alpha_s: float
    beta_s_per_byte: float
    alpha_error_s: float | None
    """standard error; so is the next"""
    beta_error_s_per_byte: float | None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One call of a rival on one rank, as its answer has it."""

    algorithm: str
    backend: str
    size: int
    began: int
    ns: int
    wire: int | None
    """bytes that left this rank's interface meanwhile"""


def build_rows(
    collective: str, logs: Sequence[Sequence[Turn]], plans: Sequence[NodePlan]
) -> list[CollectiveRow]:
    """Build `bench collectives`' rows from all ranks' timed turns, in their order."""
    ranks, nodes = len(logs), max(1, len(plans))
    workers = ranks // nodes
    turns: dict[tuple[str, str, int], list[int]] = {}
    for number, turn in enumerate(logs[0]):
        turns.setdefault((turn.algorithm, turn.backend, turn.size), []).append(number)
    rows = []
    for (algorithm, backend, size), numbers in turns.items():
        call = CollectiveCall(
            collective=collective,
            algorithm=algorithm,
            ranks=ranks,
            elements=whole_elements(collective, ranks, size, FLOAT32_BYTES),
            ranks_per_node=workers,
        )
        parts = [_split([log[number] for log in logs]) for number in numbers]
        times = [wait + transfer for wait, transfer in parts]
        low, median, high = quartiles(times)
        algorithm_bandwidth, bus_bandwidth = cost.bandwidths(collective, ranks, call.nbytes, median)
        leaders = logs[::workers]  # ranks of one node read the same counter
        wire = [[log[number].wire for number in numbers] for log in leaders]
        limit = limit_s(call, plans)
        rows.append(
            CollectiveRow(
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
                wire_bytes=_medians(wire),
                payload_bytes=payload(call, nodes),
                link_share=None if limit is None else limit / median,
            )
        )
    return sorted(rows, key=lambda row: row.asked_size)


def _split(ranks: Sequence[Turn]) -> tuple[float, float]:
    """Return what the slowest rank of a turn waited and transferred, in seconds."""
    slowest = max(ranks, key=lambda turn: turn.ns)
    last = max(turn.began for turn in ranks)
    # of a broadcast, a rank may be done before the last has begun
    wait = min(last - slowest.began, slowest.ns)
    return wait / 1e9, (slowest.ns - wait) / 1e9


def _medians(wire: Sequence[Sequence[int | None]]) -> list[int] | None:
    """Return each node's median over turns; None where an interface has no counter."""
    known = [[nbytes for nbytes in turns if nbytes is not None] for turns in wire]
    return None if known != wire else [int(statistics.median(turns)) for turns in known]


def payload(call: CollectiveCall, nodes: int) -> list[int] | None:
    """Return each node's bytes to others in a benched collective; on one node, all ranks'."""
    return None if call.algorithm in BY_BACKEND else _bytes_between(call, nodes)[0]


def _bytes_between(call: CollectiveCall, nodes: int) -> tuple[list[int], list[int]]:
    """Return what each node sends to others and receives; one node alone: what its ranks do."""
    workers = call.ranks // nodes
    sent, received = [0] * nodes, [0] * nodes
    for message in (message for now in plan(call) for message in now):
        source, target = message.source // workers, message.target // workers
        if nodes == 1 or source != target:
            sent[source] += message.size
            received[target] += message.size
    return sent, received


def limit_s(call: CollectiveCall, plans: Sequence[NodePlan]) -> float | None:
    """Return the least time of a benched collective on its shaped links; None: none is shaped.

    Each node's link carries what its ranks send to other nodes, and at the same time what they
    receive; the one that takes longest is the limit. What the backend does itself is taken for an
    algorithm that moves as few bytes as any can.
    """
    rates = [each.rate for each in plans]
    if not rates or all(rate is None for rate in rates):
        return None
    if call.algorithm in BY_BACKEND:
        busiest = [call.nbytes * cost.bus_factor(call.collective, len(rates))] * len(rates)
    else:
        busiest = list(map(max, *_bytes_between(call, len(rates))))
    pairs = zip(busiest, rates, strict=True)
    return max(8 * nbytes / rate for nbytes, rate in pairs if rate is not None)


def path_of(row: CollectiveRow) -> cost.CriticalPath:
    """Return the critical path of a benched collective: the rounds and bytes of its time."""
    if row.algorithm in BY_BACKEND:
        return cost.CriticalPath(1, round(row.size * cost.bus_factor(row.collective, row.ranks)))
    return cost.waiting_path(
        CollectiveCall(
            collective=row.collective,
            algorithm=row.algorithm,
            ranks=row.ranks,
            elements=row.size // FLOAT32_BYTES,
            ranks_per_node=row.ranks // row.nodes,
        )
    )


def fit_rows(rows: Iterable[CollectiveRow]) -> list[CollectiveFit]:
    """Fit alpha and beta to `bench collectives`' rows, by algorithm and backend with two sizes."""
    fits = []
    for (algorithm, backend), own in _by_rival(rows).items():
        alpha_beta = _fit(own)
        if alpha_beta is not None:
            told = len(own) > 2
            fits.append(
                CollectiveFit(
                    collective=own[0].collective,
                    algorithm=algorithm,
                    backend=backend,
                    ranks=own[0].ranks,
                    sizes=len(own),
                    alpha_s=alpha_beta.alpha_s,
                    beta_s_per_byte=alpha_beta.beta_s_per_byte,
                    alpha_error_s=alpha_beta.alpha_error_s if told else None,
                    beta_error_s_per_byte=alpha_beta.beta_error_s_per_byte if told else None,
                )
            )
    return fits


def predict_rows(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Add to `bench collectives`' rows what a fit on the rival's other sizes predicts."""
    rivals = _by_rival(rows)
    predicted = []
    for row in rows:
        own = rivals[row.algorithm, row.backend]
        alpha_beta = _fit([other for other in own if other.size != row.size])
        if alpha_beta is not None:
            seconds = alpha_beta.seconds(path_of(row))
            row = replace(row, predicted_s=seconds, prediction_error=seconds / row.median_s - 1)
        predicted.append(row)
    return predicted


def _by_rival(rows: Iterable[CollectiveRow]) -> dict[tuple[str, str], list[CollectiveRow]]:
    found: dict[tuple[str, str], list[CollectiveRow]] = {}
    for row in rows:
        found.setdefault((row.algorithm, row.backend), []).append(row)
    return found


def _fit(rows: Sequence[CollectiveRow]) -> cost.AlphaBeta | None:
    try:
        return cost.fit(cost.Point(*path_of(row), row.median_s) for row in rows)
    except ValueError:  # one size alone, or several of the same shape
        return None


@dataclass(frozen=True)
class SkippedBackend:
    """A backend that was asked for and cannot join these ranks."""

    backend: str
    why: str


@dataclass(frozen=True, kw_only=True)
class CollectivesResult(BenchResult[CollectiveRow]):
    """All that a bench of collectives found out."""

    bench = "collectives"
    spec: CollectivesSpec
    rows: list[CollectiveRow]
    fits: list[CollectiveFit]
    interface: str
    skipped: list[SkippedBackend]
    machine: Mapping[str, object]


def run_collectives(spec: CollectivesSpec, *, out: Path | None, watch: Watch) -> CollectivesResult:
    """Run `bench collectives`; blocks until all ranks are done.

    `out` keeps the run directory; with several numbers of workers, it holds one for each.

    Raises:
        DrumlineError: a rank failed, or a collective gave a wrong result.
    """
    rows: list[CollectiveRow] = []
    fits: list[CollectiveFit] = []
    interface = ""
    for workers in spec.workers:
        request = {
            "collective": spec.collective,
            "rivals": spec.rivals,
            "sizes": [0] if spec.collective == "barrier" else sorted(spec.sizes),
            "workers": workers,
            "rounds": spec.rounds,
            "budget_s": _BUDGET_S / len(spec.workers),
            "timeout_s": spec.timeout_s,
        }
        folder = out if out is None or len(spec.workers) == 1 else out / f"workers-{workers}"
        with launched_probe(
            "drumline.probe.collectives",
            request,
            ranks=spec.nodes * workers,
            out=folder,
            plans=spec.node_plans,
            # the others, too: rivals take turns in the same processes
            by_mpi="mpi" in spec.usable_backends,
            watch=watch,
        ) as answers:
            turns = [[Turn(**turn) for turn in answer["turns"]] for answer in answers]
            found = predict_rows(build_rows(spec.collective, turns, spec.node_plans))
            interface = answers[0]["interface"]
        rows += found
        fits += fit_rows(found)
    return CollectivesResult(
        spec=spec,
        rows=rows,
        fits=fits,
        interface=interface,
        skipped=[SkippedBackend(*each) for each in spec.unusable_backends.items()],
        machine=describe_machine(),
    )
