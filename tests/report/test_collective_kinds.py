"""Collectives by kind, with the bandwidths of nccl-tests."""

from __future__ import annotations

import pytest

from drumline.report.ledger.collectives import CollectivesAccount
from drumline.report.ledger.steps import account_for
from metered_runs import BUCKET, ddp_logs, loop_logs

MS = 10**6


def collective_kinds(logs, **options):
    account = CollectivesAccount(**options)
    account_for(logs, counted=[account])
    return account.close()


def test_calls_are_added_up_by_kind_and_ranks():
    logs = ddp_logs(ranks=4, compute_ms=lambda rank, _: 20 + 8 * (rank == 3), transfer_ms=2.0)
    for rank in (0, 1):
        for event in logs[rank]:
            event["spans"].append(["send" if rank == 0 else "receive", 500, 0, rank * MS, [0, 1]])
    reduced, message = collective_kinds(logs)
    assert (reduced.op, reduced.ranks, reduced.calls, reduced.nbytes) == (
        "all_reduce",
        4,
        7,
        7 * BUCKET,
    )
    assert reduced.wait_s == pytest.approx(7 * 3 * 0.008)
    assert reduced.transfer_s == pytest.approx(7 * 0.002)
    assert reduced.algorithm_bps == pytest.approx(BUCKET / 0.002)
    assert reduced.bus_bps == pytest.approx(1.5 * BUCKET / 0.002)
    assert (message.op, message.ranks, message.nbytes) == ("message", 2, 3500)
    assert message.bus_bps is None


def test_our_own_ways_to_an_all_reduce_have_its_bus_bandwidth():
    logs = ddp_logs()
    for log in logs:
        for event in log:
            event["spans"][0][0] = "chunked_ring"
    assert collective_kinds(logs)[0].bus_bps is None
    assert collective_kinds(logs, aggregator="chunked_ring")[0].bus_bps == pytest.approx(5e8)


def test_a_barrier_has_no_bandwidth():
    logs = loop_logs()
    for log in logs:
        for event in log:
            for span in event["spans"]:
                span[:2] = ["barrier", 0]
    (barrier,) = collective_kinds(logs)
    assert (barrier.op, barrier.calls, barrier.algorithm_bps, barrier.bus_bps) == (
        "barrier",
        40,
        None,
        None,
    )
    assert collective_kinds([[], []]) == []
