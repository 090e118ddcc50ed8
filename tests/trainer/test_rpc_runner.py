"""What parts that are called by RPC note of their calls, as the ledger reads it."""

from __future__ import annotations

import pytest

from drumline.comm import Meter
from drumline.report.ledger.accounts import compute_ledger
from drumline.trainer.runners.rpc import note_calls

MS = 10**6


def events_of(part, work, *, sent):
    """The log of a part that worked so, as (kind, microbatch, since, until) in ms."""
    meter = Meter()
    for kind, microbatch, since, until in work:
        meter.note_work(kind, microbatch, 0, since * MS, until * MS)
    note_calls(meter, part, 2, 0, sent)
    taken = meter.drain()
    times = {"total": 50 * MS, "data": 0, "blocked": taken.blocked, "spans": taken.spans}
    return [{"event": "step", "step": 1, **times}]


def test_both_ends_of_a_call_are_told_by_its_microbatch():
    """Part 1 is still busy when microbatch 1 comes, and its backward of 0 overtakes that of 1."""
    first = (("forward", 0, 0, 10), ("forward", 1, 10, 20))
    first = (*first, ("backward", 0, 36, 40), ("backward", 1, 42, 46))
    second = (("forward", 0, 12, 20), ("forward", 1, 20, 28))
    second = (*second, ("backward", 1, 28, 40), ("backward", 0, 29, 34))
    ledger = compute_ledger([events_of(0, first, sent=101), events_of(1, second, sent=70)])
    found = [(row.wait_s, row.transfer_s, row.exposed_s, row.caused_s) for row in ledger.ranks]
    assert found[0] == pytest.approx((0.014, 0.004, 0.018, 0.010))
    assert found[1] == pytest.approx((0.010, 0.002, 0.012, 0.014))
    assert ledger.nbytes == 101, "all that rank 0 has sent"
