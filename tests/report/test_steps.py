"""The logs of all ranks, read side by side: the same as if all were read at once."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.core.rundir import EventLog
from drumline.report.ledger import steps
from drumline.report.ledger.accounts import compute_ledger
from drumline.report.ledger.steps import common_steps
from drumline.report.page.translator import Language
from drumline.report.runs.record import read_record
from metered_runs import MS, ddp_logs, loop_logs, make_metered_run


def steps_at_once(log):
    """The naive way: all steps of a log in memory, and those that a restart undid taken out."""
    found, first = {}, True
    for event in log:
        if event["event"] == "start":
            first = True
        elif event["event"] == "restore":
            found = {number: step for number, step in found.items() if number <= event["step"]}
        elif event["event"] == "step":
            if first:
                found = {number: step for number, step in found.items() if number < event["step"]}
            found[event["step"]] = {**event, "first": True} if first else event
            first = False
    return found


@st.composite
def restarted(draw):
    """A rank's log: it starts again, from a checkpoint or from nothing, and lacks steps."""
    log, done, now = [], 0, 0
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, done))
        log += [{"event": "start"}, *([{"event": "restore", "step": begin}] if begin else [])]
        done = begin + draw(st.integers(0, 5))
        for number in range(begin + 1, done + 1):
            now += 1
            times = {"t": now, "data": 0, "total": 1, "blocked": [], "spans": [["x", now]]}
            if draw(st.integers(0, 9)):
                log.append({"event": "step", "step": number, **times})
    return log


@settings(max_examples=300, deadline=None)
@given(st.lists(restarted(), min_size=1, max_size=3))
def test_steps_that_restarts_undid_are_known_before_they_are_read(logs):
    by_rank = [steps_at_once(log) for log in logs]
    common = sorted(set.intersection(*map(set, by_rank)))
    assert list(common_steps(logs)) == [[own[number] for own in by_rank] for number in common]


@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_a_log_on_disk_tells_what_one_in_memory_does(tmp_path, separators):
    torn = '{"event":"step","step":9,"t":5,"data":1,"update":1,"total":4,"blocked":[[1,'
    logs = []
    for rank, log in enumerate(ddp_logs(steps=6)):
        path = tmp_path / f"rank-{rank}.jsonl"
        lines = [json.dumps(event, separators=separators) for event in log]
        path.write_text("\n".join([*lines[:3], torn, *lines[3:], torn]))
        logs.append(EventLog(path))
    assert compute_ledger(logs) == compute_ledger(ddp_logs(steps=6))
    assert [len(event) for event in logs[0].outlines()] == [6] * 6  # no rows were read
    assert [event["step"] for event in logs[0].read(lambda step: step["step"] == 4)] == [4]
    assert list(EventLog(tmp_path / "none.jsonl")) == []


def test_a_run_may_start_again_while_its_log_is_read(tmp_path):
    """`drumline show` of a run that goes on."""
    path, log = tmp_path / "rank-0.jsonl", [{"event": "start"}, *ddp_logs(steps=3)[0]]
    path.write_text("".join(json.dumps(event) + "\n" for event in log))
    reading = common_steps([EventLog(path)])
    assert next(reading)[0]["step"] == 1
    with path.open("a") as file:
        for event in ({"event": "start"}, {"event": "restore", "step": 2}, *log[3:]):
            file.write(json.dumps(event) + "\n")
    assert [ranks[0]["step"] for ranks in reading][:2] == [2, 3]


@pytest.mark.parametrize("numbered", [True, False])
def test_time_without_steps_is_the_same_in_parts(monkeypatch, numbered):
    """A part ends between two ranks' stretches: some calls are in one part on rank 0 alone."""
    logs = loop_logs(seconds=9, slow=1, ranks=3, numbered=numbered)
    whole = compute_ledger(logs)
    monkeypatch.setattr(steps, "_MOST_SPANS", 25)
    ledger = compute_ledger(logs)
    assert (ledger.collectives, ledger.nbytes) == (90, 9 * 10**7)
    assert ledger.seconds == pytest.approx(whole.seconds)
    for own, other in zip(ledger.ranks, whole.ranks, strict=True):
        assert vars(own) == pytest.approx(vars(other))


def test_a_call_that_ends_in_a_later_part_costs_no_time_twice(monkeypatch):
    """While it goes on, others end: their time is theirs, and what is left is its own."""
    short, long = ["barrier", 0, 20, 300, [], 1, "b"], ["all_reduce", 1, 10, 900, [], 1, "a"]
    first = {"t": 0, "total": 500, "spans": [short], "blocked": [[20, 300]]}
    second = {"t": 500, "total": 500, "spans": [long], "blocked": [[600, 900]]}
    logs = [[{"event": "collectives", **each} for each in (first, second)] for _ in range(2)]
    monkeypatch.setattr(steps, "_MOST_SPANS", 1)
    row = compute_ledger(logs).ranks[0]
    assert row.exposed_s == pytest.approx(580e-9)
    assert row.wait_s + row.transfer_s <= 900e-9


def test_memory_does_not_grow_with_what_was_done_in_each_step(tmp_path):
    """About 1 MB of events; a run of a hundred thousand steps has a thousand times as many."""
    logs = ddp_logs(steps=150)
    for log in logs:
        for event in log:
            event["spans"] = [
                ["all_reduce", 8, event["t"] + at, event["t"] + at + 1, [], at, "0"]
                for at in range(100)
            ]
    run = make_metered_run(tmp_path / "train-1", logs)
    size = sum(run.rank_events(rank).stat().st_size for rank in range(2))
    read_record(run)  # modules and texts are loaded once
    tracemalloc.start()
    record = read_record(run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record.ledger.collectives == 149 * 100
    assert peak < size / 4


def test_steps_of_another_version_are_timed_though_their_ledger_cannot_be_told(tmp_path):
    logs = ddp_logs(steps=4)
    for event in (event for log in logs for event in log):
        del event["spans"]
    record = read_record(make_metered_run(tmp_path / "train-1", logs))
    assert [time.step for time in record.times] == [1, 2, 3, 4]
    assert record.times[-1].seconds == pytest.approx(4 * 24 * MS / 1e9)
    assert (record.ledger, record.slow_link, record.step_s) == (None, None, [])
    assert "KeyError: 'spans'" in record.say_gaps(Language.EN)[0]
