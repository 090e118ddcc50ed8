"""Who is blamed for a failed run, from run directories made up by hand."""

from __future__ import annotations

import signal

import pytest

from drumline.core.errors import DrumlineError, SpecError, UsageError, WorkerError
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.status import StatusWriter
from drumline.launcher.outcome import RunOutcome
from drumline.spec.load import load_spec, write_run_spec

TRACE = 'Traceback (most recent call last):\n  File "m.py", line 1\nValueError: the sky fell\n'
LOST = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n"


@pytest.fixture
def run(tmp_path):
    return RunDir.create("demo", root=tmp_path)


def write(run: RunDir, rank: int, *events: dict) -> None:
    with EventWriter(run.rank_events(rank)) as log:
        for event in events:
            log.write(event.pop("event"), **event)


def write_node(run: RunDir, *events: dict, node: int = 0) -> None:
    with EventWriter(run.node_events(node)) as log:
        for event in events:
            log.write(event.pop("event"), **event)


def start() -> dict:
    return {"event": "start", "attempt": 0}


def error(rank: int, time: float, *, consequence=False, trace=TRACE, **more) -> dict:
    return {
        "event": "error",
        "rank": rank,
        "time": time,
        "type": "ValueError",
        "message": "the sky fell",
        "traceback": trace,
        "expected": False,
        "consequence": consequence,
        **more,
    }


def left(rank: int, exit_code: int) -> dict:
    return {"event": "worker_exit", "rank": rank, "exit_code": exit_code, "time": 9.0}


def ended(run: RunDir, **told) -> RunOutcome:
    """What is left of a run whose ranks could write all errors to its directory."""
    return RunOutcome(run=run, fallback_events=run.path / "scratch", **told)


def outcome(run: RunDir, *, world_size: int = 2, exit_codes=(1,)) -> DrumlineError:
    with pytest.raises(DrumlineError) as caught:
        ended(run, world_size=world_size, exit_codes=list(exit_codes)).check()
    return caught.value


def test_a_run_whose_agents_ended_well_has_no_error(run):
    write(run, 0, start(), error(0, 1.0))  # of a worker that was restarted
    ended(run, world_size=2, exit_codes=[0, 0]).check()


def test_the_cause_comes_first_however_late_it_was_written(run):
    write(run, 0, start(), error(0, 1.0, consequence=True, trace=LOST))
    write(run, 1, start(), error(1, 2.0))
    write(run, 2, start(), error(2, 3.0, consequence=True, trace=LOST))
    told = outcome(run, world_size=3)
    assert type(told) is WorkerError
    assert (told.exit_code, told.fields) == (1, {"rank": 1})
    assert told.message.splitlines() == [
        "rank 1 failed:",
        "  Traceback (most recent call last):",
        '    File "m.py", line 1',
        "  ValueError: the sky fell",
        f"2 other ranks then lost the connection (logs in {run.logs}); "
        f"its log is {run.rank_log(1)}",
    ]


def test_of_two_causes_the_earlier_one_is_told(run):
    write(run, 0, start(), error(0, 5.0))
    write(run, 1, start(), error(1, 4.0))
    assert outcome(run).fields["rank"] == 1


def test_one_other_rank_is_said_in_the_singular(run):
    write(run, 0, start(), error(0, 1.0))
    write(run, 1, start(), error(1, 2.0, consequence=True))
    assert "\none other rank then lost the connection (" in outcome(run).message


def test_a_rank_that_fails_alone_has_nothing_folded(run):
    write(run, 0, start(), error(0, 1.0))
    assert outcome(run, world_size=1).message.endswith(f"\nits log is {run.rank_log(0)}")


def test_a_long_traceback_is_cut_in_the_middle_and_keeps_its_end(run):
    trace = "Traceback (most recent call last):\n" + "".join(f"  line {n}\n" for n in range(500))
    write(run, 0, start(), error(0, 1.0, trace=trace + "ValueError: the end\n"))
    lines = outcome(run).message.splitlines()
    assert len(lines) < 50
    assert lines[-2] == "  ValueError: the end"


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("SpecError", SpecError, 2),
        ("UsageError", UsageError, 2),
        ("DataError", DrumlineError, 1),
        ("DivergenceError", DrumlineError, 1),
    ],
)
def test_an_expected_error_is_told_by_its_sentence_alone(run, name, kind, code):
    told = {"expected": True, "type": name, "message": "batch is 0; set it to 1"}
    write(run, 0, start(), error(0, 1.0, **told))
    write(run, 1, start(), error(1, 1.1, **told))
    found = outcome(run)
    assert isinstance(found, kind)
    assert not isinstance(found, WorkerError)
    assert (found.message, found.exit_code) == ("batch is 0; set it to 1", code)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-signal.SIGKILL, "was killed by SIGKILL (out of memory?)"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-250, "was killed by signal 250"),
        (3, "exited with code 3"),
    ],
)
def test_a_rank_that_left_without_a_word_is_told_by_how_it_left(run, code, how):
    write(run, 0, start(), error(0, 1.0, consequence=True, trace=LOST))
    write(run, 1, start())
    write_node(run, {"event": "agent", "node": 0}, left(0, 1), left(1, code))
    told = outcome(run)
    assert told.fields == {"rank": 1}
    assert told.message == (
        f"rank 1 {how}; one other rank then lost the connection (logs in {run.logs}); "
        f"its log is {run.rank_log(1)}"
    )


def test_a_rank_that_aborts_under_a_limit_of_memory_is_told_with_it(run):
    write_run_spec(run, load_spec(None, ["memory_bytes=30MB"]))
    write(run, 0, start())
    write_node(run, {"event": "agent", "node": 0}, left(0, -signal.SIGABRT))
    assert outcome(run).message.startswith(
        "rank 0 was killed by SIGABRT (memory_bytes=30000000 may be too little for it); "
    )


def test_a_silent_rank_is_found_on_another_node(run):
    write(run, 0, start(), error(0, 1.0, consequence=True))
    write_node(run, left(0, 1), node=0)
    write_node(run, left(1, -signal.SIGKILL), node=1)
    assert outcome(run, exit_codes=[1, 1]).fields["rank"] == 1


def test_where_there_are_only_consequences_the_first_is_told(run):
    write(run, 0, start(), error(0, 2.0, consequence=True, trace=LOST))
    write(run, 1, start(), error(1, 1.0, consequence=True, trace=LOST))
    told = outcome(run)
    assert told.fields == {"rank": 1}
    assert "Connection closed by peer" in told.message


def called(run: RunDir, rank: int, *calls: tuple[str, int], world_size: int = 3) -> None:
    """Leave the status of a rank that has made these calls, kind and bytes each."""
    status = StatusWriter(run.rank_status(rank))
    group = status.add_group("0", range(world_size))
    for seq, (op, nbytes) in enumerate(calls, start=1):
        status.call_began(group, seq, op, nbytes, seq, in_backward=False)


def test_a_mismatch_is_the_cause_where_gloo_only_says_what_it_received(run):
    """Whoever aborts first is told by gloo, though it did nothing wrong."""
    write(run, 0, start(), error(0, 1.0, consequence=True, trace=LOST))
    write_node(run, left(0, -signal.SIGABRT))
    for rank in range(3):
        called(run, rank, ("all_reduce", 4), ("all_reduce", 28 if rank == 1 else 4))
    told = outcome(run, world_size=3)
    assert told.fields == {"rank": 1}
    assert told.message.startswith(
        "mismatch: rank 1 called all_reduce #2 (28 B) where ranks 0 and 2 called all_reduce #2 "
        "(4 B); "
    )


def test_an_exception_comes_before_what_it_led_to(run):
    """Rank 1 failed, and called a barrier on its way out."""
    write(run, 1, start(), error(1, 1.0))
    for rank in range(3):
        called(run, rank, ("barrier", 0) if rank == 1 else ("all_reduce", 4))
    assert outcome(run, world_size=3).message.startswith("rank 1 failed:")


def test_a_rank_that_left_early_is_told_with_what_it_did_not_call(run):
    for rank in (0, 2):
        write(run, rank, start(), error(rank, 1.0, consequence=True, trace=LOST))
        called(run, rank, ("all_reduce", 4), ("broadcast", 8))
    called(run, 1, ("all_reduce", 4))
    told = outcome(run, world_size=3).message
    assert told.startswith(
        "rank 1 ended without calling broadcast #2 (8 B) that ranks 0 and 2 waited in; "
    )


def test_a_rank_that_has_called_much_since_is_not_told_to_have_missed_a_call(run):
    """Its status has the last 256 calls: rank 2 exchanged messages after the barrier, and left."""
    for rank in range(3):
        called(run, rank, ("barrier", 8))
    for rank in (0, 1):
        write(run, rank, start(), error(rank, 1.0, consequence=True, trace=LOST))
    status = StatusWriter(run.rank_status(2))
    status.call_began(status.add_group("0", range(3)), 1, "barrier", 8, 1, in_backward=False)
    messages = status.add_group("2>0", (2, 0))
    for seq in range(1, 300):
        status.call_began(messages, seq, "send", 4, seq, in_backward=False)
    assert outcome(run, world_size=3).message.startswith("rank 2 ended without a word; ")


def test_of_ranks_that_left_only_what_all_of_them_missed_is_told(run):
    """Rank 2 had called it, too."""
    write(run, 0, start(), error(0, 1.0, consequence=True, trace=LOST))
    called(run, 0, ("all_reduce", 4), ("broadcast", 8))
    called(run, 1, ("all_reduce", 4))
    called(run, 2, ("all_reduce", 4), ("broadcast", 8))
    assert outcome(run, world_size=3).message.startswith("rank 1 or 2 ended without a word; ")


def test_errors_of_an_earlier_attempt_are_not_told(run):
    write(run, 0, start(), error(0, 1.0), start(), error(0, 9.0, consequence=True, trace=LOST))
    write(run, 1, start(), error(1, 1.5, consequence=True), start(), error(1, 8.0))
    assert outcome(run).fields == {"rank": 1}


def test_an_error_event_that_was_torn_is_as_good_as_none(run):
    write(run, 0, start())
    with run.rank_events(0).open("a") as log:
        log.write('{"event":"error","rank":0,"ti')
    write_node(run, left(0, -signal.SIGKILL))
    assert outcome(run).message.startswith("rank 0 was killed by SIGKILL (out of memory?); its log")


@pytest.mark.parametrize("codes", [[1], [-9], [None], [0, 1]])
def test_where_nothing_was_written_the_agent_s_log_is_named(run, codes):
    told = outcome(run, exit_codes=codes)
    assert type(told) is WorkerError
    assert f"ended with code {codes[-1]} before any rank failed" in told.message
    assert str(run.logs) in told.message


def silent(rank: int, unreachable: list[int]) -> dict:
    return error(rank, 1.0 + rank, consequence=True, timed_out=True, unreachable=unreachable)


def test_the_node_that_most_cannot_reach_is_the_one_cut_off(run):
    write(run, 0, start(), silent(0, [2]))
    write(run, 1, start(), silent(1, [2]))
    write(run, 2, start(), silent(2, [0, 1, 3]))
    told = outcome(run, world_size=4, exit_codes=[1, 1, 1, 1])
    assert told.message.startswith("node 2 (rank 2) cannot be reached any more: its link is cut")
    assert told.fields["node"] == 2


def test_who_is_cut_off_itself_counts_for_little(run):
    write(run, 0, start(), error(0, 0.4, consequence=True))  # its peer has closed the connection
    write(run, 1, start(), silent(1, [0, 2]))
    write(run, 2, start(), silent(2, [1]))
    told = outcome(run, world_size=3, exit_codes=[1, None, None])
    assert told.message.startswith("node 1 (rank 1) cannot be reached any more: its link is cut")


def test_of_two_nodes_rank_0_says_who_is_cut_off(run):
    write(run, 1, start(), error(1, 0.5, consequence=True, timed_out=True, unreachable=[0]))
    write(run, 0, start(), silent(0, [1]))
    told = outcome(run, world_size=4, exit_codes=[1, 1])
    assert told.message.startswith("node 1 (ranks 2 and 3) cannot be reached")


def test_a_rank_that_stopped_answering_is_told_with_its_node(run):
    for rank in (0, 1, 3):
        write(run, rank, start(), silent(rank, []))
    told = outcome(run, world_size=4, exit_codes=[1, 1])
    assert told.message == (
        "rank 2 (node 1) stopped answering: rank 0 waited for it until timeout_s was over; "
        f"raise timeout_s if it was only slow; its log is {run.rank_log(2)}"
    )


@pytest.mark.parametrize(
    ("timeout", "until"),
    [
        ("the script's timeout", "until the script's timeout was over; raise the script's timeout"),
        (None, "in vain"),
    ],
)
def test_several_that_stopped_answering_are_told_by_what_limits_the_wait(run, timeout, until):
    write(run, 1, start(), silent(1, []))
    with pytest.raises(WorkerError) as caught:
        ended(run, world_size=3, exit_codes=[1], timeout=timeout).check()
    slow = " if they were only slow" if timeout else ""
    assert caught.value.message == (
        f"ranks 0 and 2 stopped answering: rank 1 waited for them {until}{slow}; "
        f"the logs are in {run.logs}"
    )


def test_a_log_that_will_be_gone_is_quoted_and_not_pointed_to(run):
    write(run, 0, start(), error(0, 1.0, consequence=True, trace=LOST))
    write_node(run, left(1, -signal.SIGKILL))
    for printed, told in (
        ("", "rank 1 printed nothing; "),
        ("".join(f"line {n}\n" for n in range(99)), "rank 1 printed last:\n  line 89\n  line 90\n"),
    ):
        run.rank_log(1).write_text(printed)
        with pytest.raises(WorkerError) as caught:
            ended(run, world_size=2, exit_codes=[1], kept=False).check()
        message = caught.value.message
        assert message.startswith(
            "rank 1 was killed by SIGKILL (out of memory?); one other rank then lost the "
            f"connection; {told}"
        )
        assert message.endswith("give --out DIR to keep the logs")
        assert str(run.path) not in message


def test_errors_left_elsewhere_count_once_and_only_where_the_run_has_none(run, tmp_path):
    write(run, 0, start(), error(0, 2.0, consequence=True, trace=LOST))
    for rank in (0, 1):
        with EventWriter(tmp_path / f"rank-{rank}.jsonl") as log:
            log.write(**error(rank, 1.0 + rank))
    with pytest.raises(WorkerError) as caught:
        RunOutcome(run=run, world_size=2, exit_codes=[1], fallback_events=tmp_path).check()
    assert caught.value.fields == {"rank": 1}
    assert "one other rank then lost the connection" in caught.value.message


def test_an_agent_that_was_killed_is_told_by_its_node(run):
    write(run, 0, start(), error(0, 1.0, consequence=True))
    told = outcome(run, exit_codes=[1, -9])
    assert told.message.startswith("the process that starts the ranks of node 1 ended with code -9")
