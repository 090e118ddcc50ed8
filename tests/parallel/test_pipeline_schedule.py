"""Schedules: whole literal ones, the drawn ones, and laws over all sizes by a small simulation."""

from __future__ import annotations

import ast
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.core.errors import UsageError
from drumline.parallel.pipeline import schedule
from drumline.parallel.pipeline.executor import read_instructions
from drumline.parallel.pipeline.schedule import (
    SCHEDULES,
    Backward,
    Forward,
    ReceiveActivation,
    ReceiveGradient,
    SendActivation,
    SendGradient,
    peak_live,
)
from drumline.spec.strategy import bubble

LETTERS = {
    ReceiveActivation: "ra",
    Forward: "F",
    SendActivation: "sa",
    ReceiveGradient: "rg",
    Backward: "B",
    SendGradient: "sg",
}


def plans(name, stages, microbatches, chunks=1):
    return [read_instructions(name, stage, stages, microbatches, chunks) for stage in range(stages)]


def write(instructions):
    """Shorten a schedule to letters; those of a second chunk have a tick: F0'."""
    return " ".join(
        f"{LETTERS[type(each)]}{each.microbatch}" + "'" * each.chunk for each in instructions
    )


def test_whole_schedules_of_two_stages():
    assert [write(each) for each in plans("gpipe", 2, 3)] == [
        "F0 sa0 F1 sa1 F2 sa2 rg0 B0 rg1 B1 rg2 B2",
        "ra0 F0 ra1 F1 ra2 F2 B0 sg0 B1 sg1 B2 sg2",
    ]
    assert [write(each) for each in plans("1f1b", 2, 3)] == [
        "F0 sa0 F1 sa1 rg0 B0 F2 sa2 rg1 B1 rg2 B2",
        "ra0 F0 B0 sg0 ra1 F1 B1 sg1 ra2 F2 B2 sg2",
    ]
    assert [write(each) for each in plans("interleaved", 2, 2, 2)] == [
        "F0 sa0 F1 sa1 ra0' F0' sa0' ra1' F1' sa1' rg0' B0' sg0' rg1' B1' sg1' rg0 B0 rg1 B1",
        "ra0 F0 sa0 ra1 F1 sa1 ra0' F0' B0' sg0' ra1' F1' B1' sg1' rg0 B0 sg0 rg1 B1 sg1",
    ]


def test_whole_schedules_of_a_middle_stage_and_of_one_stage():
    assert write(read_instructions("1f1b", 1, 3, 3, 1)) == (
        "ra0 F0 sa0 ra1 F1 sa1 rg0 B0 sg0 ra2 F2 sa2 rg1 B1 sg1 rg2 B2 sg2"
    )
    assert write(read_instructions("1f1b", 0, 1, 2, 1)) == "F0 B0 F1 B1"
    assert write(read_instructions("gpipe", 0, 1, 2, 1)) == "F0 F1 B0 B1"
    assert write(read_instructions("interleaved", 0, 1, 1, 2)) == "F0 sa0 ra0' F0' B0' sg0' rg0 B0"


def test_instructions_are_values():
    assert Forward(1) == Forward(1, 0) != Backward(1, 0)
    assert len({Forward(1), Forward(1, 0), Backward(1)}) == 2
    with pytest.raises(AttributeError):
        Forward(1).microbatch = 2


# A simulation: every rank does what its plan says as soon as it can.


def simulate(all_plans, *, forward=1, backward=1, window=None):
    """Return each rank's clock, {tick: instruction}, and the time when all are done.

    A send does not block, unless `window` earlier ones of its kind are not taken yet.
    Raises AssertionError where no rank can go on, or a message comes out of turn.
    """
    ranks = len(all_plans)
    left = [list(reversed(plan)) for plan in all_plans]
    now, clocks = [0] * ranks, [{} for _ in range(ranks)]
    mail = {}  # (kind, to): [(microbatch, virtual stage), when], as they were sent
    taken = {}  # (kind, to): how many of these were received
    while any(left):
        progress = False
        for rank in range(ranks):
            while left[rank] and step(
                rank, left[rank][-1], now, clocks, mail, taken, (forward, backward, window)
            ):
                left[rank].pop()
                progress = True
        assert progress, f"nobody can go on: {[write(each[-1:]) for each in left]}"
    assert {key: len(sent) for key, sent in mail.items()} == taken, "something was never received"
    return clocks, max(now)


def step(rank, at, now, clocks, mail, taken, how):
    forward, backward, window = how
    ranks = len(now)
    virtual = at.chunk * ranks + rank
    if isinstance(at, Forward | Backward):
        for _ in range(forward if isinstance(at, Forward) else backward):
            clocks[rank][now[rank]] = at
            now[rank] += 1
    elif isinstance(at, SendActivation | SendGradient):
        target = virtual + (1 if isinstance(at, SendActivation) else -1)
        lane = (isinstance(at, SendActivation), target % ranks)
        sent = mail.setdefault(lane, [])
        if window is not None and len(sent) - taken.get(lane, 0) >= window:
            return False
        sent.append(((at.microbatch, target), now[rank]))
    else:
        lane = (isinstance(at, ReceiveActivation), rank)
        sent, count = mail.get(lane, []), taken.get(lane, 0)
        if len(sent) == count:
            return False
        what, when = sent[count]
        assert what == (at.microbatch, virtual), f"{what} came where {write([at])} was due"
        taken[lane] = count + 1
        now[rank] = max(now[rank], when)
    return True


def draw(all_plans):
    clocks, end = simulate(all_plans)
    return [
        " ".join(
            f"{draw_one(clock[tick]) if tick in clock else '.':>2}" for tick in range(end)
        ).split()
        for clock in clocks
    ]


def draw_one(at):
    letter = LETTERS[type(at)]
    return f"{letter.lower() if at.chunk else letter}{at.microbatch}"


@pytest.mark.parametrize(
    ("name", "stages", "chunks"), [("gpipe", 3, 1), ("1f1b", 3, 1), ("interleaved", 2, 2)]
)
def test_the_clock_diagrams_are_true(name, stages, chunks):
    lines = [line.split() for line in inspect.getdoc(SCHEDULES[name]).splitlines()]
    ticks = next(len(line) - 1 for line in lines if line[:1] == ["clock"])
    drawn = [line[2 : 2 + ticks] for line in lines if line[:1] in (["stage"], ["rank"])]
    assert drawn == draw(plans(name, stages, 4, chunks))


any_schedule = st.sampled_from(
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 1), ("interleaved", 2), ("interleaved", 3)]
)
stages_of, microbatches_of = st.integers(1, 6), st.integers(1, 17)


@settings(deadline=None)
@given(any_schedule, stages_of, microbatches_of)
def test_each_forward_comes_once_and_before_its_backward(which, stages, microbatches):
    name, chunks = which
    for plan in plans(name, stages, microbatches, chunks):
        forwards = [(at.microbatch, at.chunk) for at in plan if isinstance(at, Forward)]
        backwards = [(at.microbatch, at.chunk) for at in plan if isinstance(at, Backward)]
        wanted = [(k, chunk) for k in range(microbatches) for chunk in range(chunks)]
        assert sorted(forwards) == sorted(backwards) == wanted
        for key in wanted:
            assert plan.index(Forward(*key)) < plan.index(Backward(*key))
        for chunk in range(chunks):  # gradients are added up in one order
            assert [k for k, c in backwards if c == chunk] == list(range(microbatches))


@settings(deadline=None)
@given(any_schedule, stages_of, microbatches_of)
def test_every_send_has_its_receive_in_order_and_nobody_waits_for_good(which, stages, microbatches):
    """With as many sends on their way as the executor allows, and with as many as one likes."""
    name, chunks = which
    all_plans = plans(name, stages, microbatches, chunks)
    simulate(all_plans)
    simulate(all_plans, window=stages * chunks)


@settings(deadline=None)
@given(any_schedule, stages_of, st.integers(1, 4))
def test_the_simulated_bubble_is_that_of_the_papers(which, stages, rounds):
    name, chunks = which
    microbatches = stages * rounds
    _, end = simulate(plans(name, stages, microbatches, chunks), forward=1, backward=2)
    busy = 3 * microbatches * chunks
    assert 1 - busy / end == pytest.approx(bubble(stages, microbatches, chunks))


@settings(deadline=None)
@given(stages_of, microbatches_of)
def test_live_microbatches(stages, microbatches):
    for stage, plan in enumerate(plans("gpipe", stages, microbatches)):
        assert peak_live(plan) == microbatches
        assert peak_live(read_instructions("1f1b", stage, stages, microbatches, 1)) == min(
            stages - stage, microbatches
        )


def test_bubbles():
    assert bubble(1, 4) == 0
    assert bubble(4, 8) == 3 / 11
    assert bubble(4, 8, chunks=2) == 3 / 19


def test_plans_that_cannot_be():
    with pytest.raises(UsageError, match="did you mean 'interleaved'"):
        read_instructions("interleave", 0, 2, 4, 1)
    with pytest.raises(UsageError, match="got 0; cut the batch"):
        read_instructions("1f1b", 0, 2, 0, 1)


def test_the_schedules_need_nothing_but_the_standard_library():
    tree = ast.parse(inspect.getsource(schedule))
    modules = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert modules <= {"__future__", "collections", "dataclasses", "types"}
