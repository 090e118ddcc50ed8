"""Traces: all ranks on one clock, in Chrome's JSON."""

import json
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from drumline.report.ledger.perfetto import build_trace

MS = 10**6


def step(number, began, **more):
    base = {"event": "step", "step": number, "loss": 1.5, "t": began, "total": 10 * MS}
    return {**base, "data": MS, "blocked": [], "spans": [], **more}


def test_every_piece_is_on_its_ranks_line_and_the_common_clock():
    work = [["forward", 0, 0, 1005 * MS, 1007 * MS], ["backward", 0, 1, 1007 * MS, 1009 * MS]]
    spans = [["receive", 64, 1001 * MS, 1005 * MS, [1, 0]], ["ring", 8, 1009 * MS, 1010 * MS, []]]
    events = [
        [{"event": "start"}, step(1, 1000 * MS), step(2, 2000 * MS)],
        [step(1, 1001 * MS, work=work, spans=spans, blocked=[[1001 * MS, 1005 * MS]])],
    ]
    trace = build_trace(events, last=1)
    json.dumps(trace)
    named = {(e["pid"], e["name"]): e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert (0, "step 2") not in named
    assert named[0, "step 1"]["ts"] == 0
    assert named[0, "step 1"]["dur"] == 10_000
    assert named[1, "step 1"]["ts"] == 1000
    assert (named[1, "forward 0"]["ts"], named[1, "forward 0"]["dur"]) == (5000, 2000)
    assert named[1, "backward 0, chunk 1"]["tid"] == 0
    assert named[1, "waiting"]["dur"] == 4000
    assert named[1, "receive"]["tid"] == 1
    assert named[1, "receive"]["args"] == {"bytes": 64, "ranks": [1, 0]}
    assert named[1, "ring"]["args"] == {"bytes": 8}
    rows = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert rows == {"rank 0", "rank 1"}


def slices(trace):
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


def test_what_runs_at_the_same_time_gets_a_line_more():
    def at(since, until):
        return [since * MS, until * MS]

    work = [
        *(["forward", 0, 0, *at(1, 3)], ["backward", 0, 0, *at(4, 8)]),
        *(["backward", 1, 0, *at(5, 9)], ["backward", 2, 0, *at(6, 7)]),
    ]
    spans = [
        *(["send", 8, *at(1, 5)], ["send", 8, *at(2, 3)], ["send", 8, *at(5, 9)]),
        *(["call", 0, *at(3, 3), [0, 1]], ["call", 0, *at(3, 4), [1, 0]]),
    ]
    events = [[step(1, 0, work=work, spans=spans, blocked=[at(2, 3), at(3, 4), at(8, 10)])]]
    trace = build_trace(events)
    lines = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    shown = {name: [] for name in lines.values()}
    for each in slices(trace):
        shown[lines[each["tid"]]].append((each["name"], each["ts"] / 1000))
    assert shown == {
        "compute": [
            *(("step 1", 0), ("data", 0), ("forward 0", 1), ("waiting", 2), ("waiting", 3)),
            *(("backward 0", 4), ("waiting", 8)),
        ],
        "compute 2": [("backward 1", 5)],
        "compute 3": [("backward 2", 6)],
        "messages": [("send", 1), ("send", 5)],
        "messages 2": [("send", 2), ("call", 3)],
    }
    order = {
        e["tid"]: e["args"]["sort_index"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_sort_index"
    }
    assert [lines[tid] for tid in sorted(order, key=order.__getitem__)] == sorted(lines.values())


intervals = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=12)


@given(intervals, intervals, intervals)
def test_slices_of_a_line_nest_or_are_apart(works, waits, sends):
    work = [["forward", n, 0, since, since + lasts] for n, (since, lasts) in enumerate(works)]
    spans = [["send", 8, since, since + lasts] for since, lasts in sends]
    blocked = [[since, since + lasts] for since, lasts in waits]
    found = slices(
        build_trace([[step(1, 0, total=15, data=1, work=work, spans=spans, blocked=blocked)]])
    )
    assert len(found) == 2 + len(work) + len(spans) + len(blocked)
    for one, other in combinations(found, 2):
        if one["tid"] == other["tid"]:
            (a, b), (c, d) = ((round(1000 * e["ts"]), round(1000 * e["dur"])) for e in (one, other))
            b, d = a + b, c + d
            assert b <= c or d <= a or a <= c <= d <= b or c <= a <= b <= d


def test_no_steps_give_an_empty_trace():
    assert [e for e in build_trace([[], []])["traceEvents"] if e["ph"] == "X"] == []


def test_what_lies_between_the_steps_that_are_shown_is_shown_too():
    """An evaluation between steps 2 and 3 is; what came before step 2 is not."""

    def outside(began, op):
        span = [op, 8, began + MS, began + 2 * MS, [], 1, "0"]
        times = {"t": began, "total": 5 * MS, "blocked": []}
        return {"event": "collectives", **times, "spans": [span]}

    log = [
        *(outside(0, "barrier"), step(2, 10 * MS), outside(20 * MS, "all_gather")),
        *(step(3, 30 * MS, loss=None), outside(45 * MS, "broadcast")),
    ]
    del log[3]["loss"]
    names = [each["name"] for each in slices(build_trace([log], first=2))]
    assert names == ["step 2", "data", "step 3", "data", "all_gather"]
    names = [each["name"] for each in slices(build_trace([[log[0], log[4]]], seconds=0.03))]
    assert names == ["barrier"]
