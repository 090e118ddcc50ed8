"""Traces: all ranks on one clock, in Chrome's JSON."""

import json

from drumline.report.trace import build_trace

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


def test_no_steps_give_an_empty_trace():
    assert [e for e in build_trace([[], []])["traceEvents"] if e["ph"] == "X"] == []
