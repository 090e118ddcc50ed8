"""The measured bubble, from events written out by hand: one tick is 10 ns."""

from __future__ import annotations

import pytest

from drumline.report.ledger.bubble import BubbleAccount
from drumline.report.ledger.steps import account_for
from drumline.spec.mesh import Mesh

TICK = 10


def work(line: str, after: int = 0) -> list[list[object]]:
    """Read a rank's clock as the schedules draw it: `F0 F1 . B0`; lower case is chunk 1."""
    return [
        [
            "forward" if word[0] in "Ff" else "backward",
            int(word[1:]),
            int(word[0].islower()),
            (after + tick) * TICK,
            (after + tick + 1) * TICK,
        ]
        for tick, word in enumerate(line.split())
        if word != "."
    ]


def log(*lines: str, after: int = 0) -> list[dict[str, object]]:
    """One rank's log: a first step, which does not count, then one for each line."""
    cold = {"event": "step", "step": 1, "work": work("F0 . . . . . . . B0")}
    return [
        {"event": "start"},
        cold,
        *(
            {"event": "step", "step": number, "work": work(line, after)}
            for number, line in enumerate(lines, 2)
        ),
    ]


def measure_bubble(logs, mesh):
    account = BubbleAccount(mesh)
    account_for(logs, counted=[account])
    return account.close()


GPIPE = ("F0 F1 F2 F3 . . B0 B1 B2 B3", ". F0 F1 F2 F3 B0 B1 B2 B3 .")


def test_a_schedule_without_delays_is_what_the_formula_says():
    found = measure_bubble([log(line) for line in GPIPE], Mesh(pipeline=2))
    assert found is not None
    assert found.measured == pytest.approx(1 / 5)
    assert found.theory == 1 / 5
    assert (found.stages, found.microbatches, found.chunks) == (2, 4, 1)
    assert found.idle_s == pytest.approx([20e-9, 20e-9])
    assert str(found) == "bubble: 20% measured, 20% by theory (2 stages, 4 microbatches)"


def test_three_stages():
    lines = (
        "F0 F1 F2 F3 . . . . B0 B1 B2 B3",
        ". F0 F1 F2 F3 . . B0 B1 B2 B3 .",
        ". . F0 F1 F2 F3 B0 B1 B2 B3 . .",
    )
    found = measure_bubble([log(line) for line in lines], Mesh(pipeline=3))
    assert found is not None
    assert found.measured == pytest.approx(found.theory) == pytest.approx(1 / 3)


def test_chunks_idle_less():
    lines = (
        "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 . b2 . b3 B2 B3",
        ". F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 .",
    )
    found = measure_bubble([log(line) for line in lines], Mesh(pipeline=2))
    assert found is not None
    assert found.measured == pytest.approx(2 / 18)
    assert found.theory == 1 / 9
    assert str(found).endswith("(2 stages, 4 microbatches, 2 chunks a rank)")


def test_one_microbatch_at_a_time():
    found = measure_bubble([log("F0 . . B0"), log(". F0 B0 .")], Mesh(pipeline=2))
    assert found is not None
    assert (found.measured, found.theory) == (0.5, 0.5)
    assert "1 microbatch)" in str(found)


def test_parts_that_rpc_numbers_are_no_chunks():
    events = [log("F0 . . B0"), log(". f0 b0 .")]
    found = measure_bubble(events, Mesh(pipeline=2))
    assert found is not None
    assert (found.theory, found.chunks) == (0.5, 1)


def test_a_slow_stage_lets_the_other_wait():
    """The window begins and ends with the work, not with the step."""
    events = [log("F0 . . . B0", after=7), log(". F0 F0 B0 .", after=7)]
    found = measure_bubble(events, Mesh(pipeline=2))
    assert found is not None
    assert found.measured == pytest.approx(1 - 5 / 10)
    assert found.idle_s == pytest.approx([30e-9, 20e-9])


def test_the_median_of_steps_counts():
    steady, late = ("F0 . . B0", ". F0 B0 ."), ("F0 . . . . . B0", ". . F0 B0 . . .")
    events = [log(steady[rank], late[rank], steady[rank]) for rank in (0, 1)]
    found = measure_bubble(events, Mesh(pipeline=2))
    assert found is not None
    assert found.measured == 0.5


def test_copies_have_windows_of_their_own():
    """The second copy runs later; that is no bubble of either."""
    events = [log(line) for line in GPIPE] + [log(line, after=30) for line in GPIPE]
    found = measure_bubble(events, Mesh(data=2, pipeline=2))
    assert found is not None
    assert found.measured == pytest.approx(1 / 5)
    assert found.idle_s == pytest.approx([20e-9] * 4)


def test_shares_of_a_stage_are_ranks_of_its_copy():
    events = [log(GPIPE[rank // 2]) for rank in range(4)]
    found = measure_bubble(events, Mesh(pipeline=2, tensor=2))
    assert found is not None
    assert found.measured == pytest.approx(1 / 5)


def test_pieces_that_overlap_count_once():
    overlapping = [
        {"event": "start"},
        {
            "event": "step",
            "step": 1,
            "work": [["forward", 0, 0, 0, 30], ["backward", 0, 0, 20, 40]],
        },
    ]
    other = [{"event": "start"}, {"event": "step", "step": 1, "work": work("F0 . . B0")}]
    found = measure_bubble([overlapping, other], Mesh(pipeline=2))
    assert found is not None
    assert found.idle_s == pytest.approx([0, 20e-9])


def test_where_nobody_noted_work_there_is_no_bubble():
    silent = [{"event": "step", "step": 1}]
    assert measure_bubble([silent, silent], Mesh(pipeline=2)) is None
    assert measure_bubble([log("F0 B0")], Mesh()) is None
    assert measure_bubble([[], []], Mesh(pipeline=2)) is None
