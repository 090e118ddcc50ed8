"""What lab 2's benches would give, made up without measuring."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drumline.bench.communication.aggregation import AggregationRow
from drumline.bench.communication.collectives import CollectiveRow
from drumline.labs.communication.experiments import KINDS


def documents() -> dict[str, Any]:
    """Return a document for each measurement of the lab."""
    return {"collectives": _collectives(), "aggregation": _aggregation()}


def _collectives() -> dict[str, Any]:
    """Two algorithms and the backend's own; chunked_ring is twice as fast as ring."""
    rows = []
    for ranks in (2, 4):
        for size in (4096, 2**20, 2**22):
            for algorithm, factor, moved in (
                ("native", 1.0, None),
                ("ring", 4.0, ranks - 1),
                ("chunked_ring", 2.0, 2 * (ranks - 1) / ranks),
            ):
                median = 1e-4 + factor * size / 1e9
                rows.append(
                    CollectiveRow(
                        collective="all_reduce",
                        algorithm=algorithm,
                        backend="gloo",
                        ranks=ranks,
                        nodes=1,
                        size=size,
                        asked_size=size,
                        rounds=1,
                        times_s=[median],
                        median_s=median,
                        low_s=median * 0.95,
                        high_s=median * 1.05,
                        wait_s=2e-5 * ranks,
                        transfer_s=median - 2e-5 * ranks,
                        algorithm_bandwidth=size / median,
                        bus_bandwidth=size / median,
                        wire_bytes=None,
                        payload_bytes=None if moved is None else [int(moved * size * ranks)],
                        link_share=None,
                        predicted_s=median * 1.1,
                        prediction_error=0.1,
                    )
                )
    return {"rows": [asdict(row) for row in rows]}


def _aggregation() -> dict[str, Any]:
    rows = [
        AggregationRow(
            situation=situation,
            kind=kind,
            rank=rank,
            node=rank,
            compute_ms=1.0,
            wait_ms=2.0 * rank * slow,
            transfer_ms=3.0,
            step_ms=10.0 * slow + number,
            step_ms_low=9.0 * slow + number,
            step_ms_high=11.0 * slow + number,
        )
        for situation, slow in (("even", 1), ("slow cpu", 2), ("slow link", 3))
        for number, kind in enumerate(KINDS)
        for rank in range(3)
    ]
    return {"rows": [asdict(row) for row in rows]}
