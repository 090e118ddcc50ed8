"""The ledger, against accounts made by hand. Times are in nanoseconds, 1 ms = 10**6."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.report.ledger.accounts import compute_ledger
from drumline.report.ledger.steps import step_seconds
from metered_runs import ddp_logs, loop_logs

MS = 10**6
START = {"event": "start", "attempt": 0}


def step(number, *, total, data=0, blocked=(), spans=()):
    """A step event; spans are (arrived, ended) in ms, or (arrived, ended, bytes)."""
    return {
        "event": "step",
        "step": number,
        "t": 0,
        "total": total * MS,
        "data": data * MS,
        "blocked": [[first * MS, last * MS] for first, last in blocked],
        "spans": [["ring", *(rest or (100,)), a * MS, e * MS] for a, e, *rest in spans],
    }


def warm_up(*steps):
    """Put a start and a first step, which is not counted, before the given ones."""
    return [START, step(0, total=1), *steps]


def seconds(ledger, *names):
    """Read columns of a ledger, rank by rank, in whole milliseconds."""
    return [tuple(round(getattr(row, f"{n}_s") * 1000, 6) for n in names) for row in ledger.ranks]


TIMES = ("total", "data", "compute", "wait", "transfer", "exposed_wait", "exposed_transfer")


def test_two_ranks_one_late_nothing_hidden():
    """Rank 0 arrives at 10, rank 1 at 40, both have their result at 50 and did nothing else.

    rank 0    data 2 │ compute 8 │ wait 30            │ transfer 10 │ optimizer 5
    rank 1    data 2 │ compute 38                     │ transfer 10 │ optimizer 5
    """
    ledger = compute_ledger(
        [
            warm_up(step(1, total=55, data=2, blocked=[(10, 50)], spans=[(10, 50)])),
            warm_up(step(1, total=55, data=2, blocked=[(40, 50)], spans=[(40, 50)])),
        ]
    )
    assert seconds(ledger, *TIMES) == [
        (55, 2, 13, 30, 10, 30, 10),
        (55, 2, 43, 0, 10, 0, 10),
    ]
    assert seconds(ledger, "caused") == [(0,), (30,)]
    assert ledger.lost_s == pytest.approx(0.050)
    assert ledger.blame == {0: 0.0, 1: pytest.approx(0.6)}
    assert ledger.transfer_share == pytest.approx(0.4)
    assert (ledger.steps, ledger.collectives, ledger.nbytes) == (1, 1, 100)


def test_three_ranks_two_collectives_partly_hidden():
    """Bucket 0 hides behind backward, except on rank 0, which is blocked from 30 on.

             bucket 0: arrived, ended     bucket 1: arrived, ended     blocked
    rank 0   10        40                 40        70                 30 … 70
    rank 1   20        40                 50        70                 50 … 70
    rank 2   30        40                 60        70                 65 … 70
    """
    spans = [[(10, 40), (40, 70)], [(20, 40), (50, 70)], [(30, 40), (60, 70)]]
    blocked = [[(30, 70)], [(50, 70)], [(65, 70)]]
    ledger = compute_ledger(
        [
            warm_up(step(1, total=80, data=5, blocked=b, spans=s))
            for b, s in zip(blocked, spans, strict=True)
        ]
    )
    assert seconds(ledger, *TIMES) == [
        (80, 5, 80 - 5 - 40, 20 + 20, 10 + 10, 0 + 20, 10 + 10),
        (80, 5, 80 - 5 - 20, 10 + 10, 10 + 10, 0 + 10, 0 + 10),
        (80, 5, 80 - 5 - 5, 0, 10 + 10, 0, 0 + 5),
    ]
    assert seconds(ledger, "caused") == [(0,), (0,), (30,)]
    assert ledger.lost_s == pytest.approx(0.065)
    assert ledger.blame[2] == pytest.approx(30 / 65)
    assert ledger.transfer_share == pytest.approx(35 / 65)
    assert ledger.collectives == 2


def test_each_collective_blames_its_own_last_rank():
    ledger = compute_ledger(
        [
            warm_up(step(1, total=40, blocked=[(0, 40)], spans=[(0, 11), (12, 40)])),
            warm_up(step(1, total=40, blocked=[(10, 40)], spans=[(10, 11), (11, 40)])),
        ]
    )
    assert seconds(ledger, "caused") == [(1,), (10,)]


def test_a_rank_that_ends_before_the_last_has_come_only_waited():
    """A broadcast's root may leave early: what it spent is waiting, never negative transfer."""
    ledger = compute_ledger(
        [
            warm_up(step(1, total=40, blocked=[(0, 5)], spans=[(0, 5)])),
            warm_up(step(1, total=40, blocked=[(20, 30)], spans=[(20, 30)])),
        ]
    )
    assert seconds(ledger, "wait", "transfer") == [(5, 0), (0, 10)]


def test_the_first_step_after_a_start_is_not_counted_unless_it_is_all_there_is():
    first, second = step(1, total=900), step(2, total=10)
    assert seconds(compute_ledger([[START, first, second]]), "total") == [(10,)]
    assert seconds(compute_ledger([[START, first]]), "total") == [(900,)]


def test_steps_done_again_after_a_restart_count_once_and_as_done_last():
    log = [
        START,
        *(step(n, total=100) for n in (1, 2, 3, 4)),
        START,
        {"event": "restore", "step": 2},
        step(3, total=900),  # the first after a start again
        step(4, total=7),
        step(5, total=8),
    ]
    ledger = compute_ledger([log, log])
    assert ledger.steps == 3  # 2, 4 and 5
    assert seconds(ledger, "total") == [(115,), (115,)]


def test_steps_that_a_restart_undid_are_not_put_beside_the_new_ones():
    """Rank 1 died before it did step 3 again: its old one ended an hour ago."""
    old = [START, *(step(n, total=5, spans=[(n, n + 1)], blocked=[(n, n + 1)]) for n in (1, 2, 3))]
    hour = 3_600_000
    again = [
        step(3, total=5, spans=[(hour, hour + 1)], blocked=[(hour, hour + 1)]),
        step(4, total=5),
    ]
    restore = {"event": "restore", "step": 2}
    ledger = compute_ledger([[*old, START, restore, *again], [*old, START, restore]])
    assert ledger.steps == 1  # step 2
    assert ledger.lost_s == pytest.approx(0.002)


def test_a_group_that_starts_anew_forgets_all_its_steps():
    log = [START, *(step(n, total=100) for n in (1, 2, 3)), START, step(1, total=9)]
    ledger = compute_ledger([log])
    assert (ledger.steps, seconds(ledger, "total")) == (1, [(9,)])


def test_only_steps_that_all_ranks_have_logged_count():
    ledger = compute_ledger(
        [
            warm_up(*(step(n, total=10) for n in (1, 2, 3))),
            warm_up(*(step(n, total=10) for n in (1, 3))),
        ]
    )
    assert ledger.steps == 2


def test_one_rank_loses_nothing_to_others():
    ledger = compute_ledger([warm_up(step(1, total=20, data=3, blocked=[], spans=[(5, 9)]))])
    assert seconds(ledger, *TIMES) == [(20, 3, 17, 0, 4, 0, 0)]
    assert (ledger.lost_s, ledger.blame, ledger.transfer_share) == (0, {0: 0.0}, 0)


@pytest.mark.parametrize("logs", [[], [[]], [[START], [START]], [warm_up(), []]])
def test_without_common_steps_there_is_nothing_to_account_for(logs):
    ledger = compute_ledger(logs)
    assert (ledger.steps, ledger.lost_s) == (0, 0)
    assert ledger.to_json() == {
        "steps": 0,
        "bytes_per_step": 0,
        "lost_s": 0.0,
        "transfer_share": 0.0,
        "ranks": [
            {"rank": rank, "lost_time_share": 0.0}
            | dict.fromkeys(
                (
                    "total_ms",
                    "data_ms",
                    "compute_ms",
                    "wait_ms",
                    "transfer_ms",
                    "exposed_wait_ms",
                    "exposed_transfer_ms",
                    "caused_ms",
                    "between_ms",
                    "exposed_ms",
                ),
                0.0,
            )
            for rank in range(len(logs))
        ],
    }


def test_json_is_per_step_and_in_milliseconds():
    steps = [
        [step(n, total=30, data=1, blocked=[b], spans=[(*b, 500)]) for n in (1, 2)]
        for b in ((10, 20), (15, 20))
    ]
    document = compute_ledger([warm_up(*log) for log in steps]).to_json()
    assert document["steps"] == 2
    assert document["bytes_per_step"] == 500
    assert document["lost_s"] == 0.03
    assert document["ranks"][0] == {
        "rank": 0,
        "lost_time_share": 0.0,
        "total_ms": 30.0,
        "data_ms": 1.0,
        "compute_ms": 19.0,
        "wait_ms": 5.0,
        "transfer_ms": 5.0,
        "exposed_wait_ms": 5.0,
        "exposed_transfer_ms": 5.0,
        "caused_ms": 0.0,
        "between_ms": 0.0,
        "exposed_ms": 10.0,
    }
    assert document["ranks"][1]["lost_time_share"] == pytest.approx(1 / 3, abs=1e-4)


# Any arrivals


@st.composite
def logs(draw):
    """Steps of a few ranks whose collectives run one after the other, blocked here and there."""
    ranks, spans = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    steps = []
    for _ in range(ranks):
        times = sorted(draw(st.lists(st.integers(0, 500), min_size=2 * spans, max_size=2 * spans)))
        edges = sorted(draw(st.sets(st.integers(0, 500), max_size=4)))
        steps.append(
            step(
                1,
                total=600,
                data=draw(st.integers(0, 50)),
                blocked=list(pairwise(edges))[::2],
                spans=list(zip(times[::2], times[1::2], strict=True)),
            )
        )
    return [warm_up(event) for event in steps]


@given(logs())
def test_the_accounts_add_up(events):
    ledger = compute_ledger(events)
    for row, log in zip(ledger.ranks, events, strict=True):
        spans = log[-1]["spans"]
        spent = sum(ended - arrived for _, _, arrived, ended in spans) / 1e9
        assert row.wait_s + row.transfer_s == pytest.approx(spent)
        assert row.data_s + row.compute_s + row.exposed_s == pytest.approx(row.total_s)
        assert row.exposed_wait_s <= row.wait_s + 1e-12
        assert row.exposed_transfer_s <= row.transfer_s + 1e-12
        assert min(row.wait_s, row.transfer_s, row.compute_s, row.caused_s) >= -1e-12
    shares = [*ledger.blame.values(), ledger.transfer_share]
    assert all(0 <= share <= 1 + 1e-9 for share in shares)
    assert sum(shares) == pytest.approx(1 if ledger.lost_s else 0)


@given(
    arrivals=st.lists(st.integers(0, 100), min_size=2, max_size=5),
    late=st.data(),
    delay=st.integers(1, 100),
)
def test_a_delay_raises_the_blame_of_the_rank_that_has_it_and_of_no_other(arrivals, late, delay):
    rank = late.draw(st.integers(0, len(arrivals) - 1))

    def caused(times):
        end = max(times) + 5
        events = [step(1, total=500, blocked=[(a, end)], spans=[(a, end)]) for a in times]
        return [row.caused_s for row in compute_ledger([warm_up(e) for e in events]).ranks]

    delayed = [time + delay * (index == rank) for index, time in enumerate(arrivals)]
    before, after = caused(arrivals), caused(delayed)
    for other in range(len(arrivals)):
        if other != rank:
            assert after[other] <= before[other] + 1e-12
    assert after[rank] >= before[rank] - 1e-12
    if delayed[rank] > max(arrivals):
        assert after[rank] > before[rank]
        assert sum(after) == after[rank]


def message(number, *, total, sent=(), received=(), blocked=()):
    """A step event with messages: sent as (peers, posted), received as (peers, waited, came)."""
    event = step(number, total=total, blocked=blocked)
    event["spans"] = [["send", 10, at * MS, at * MS, list(peers)] for peers, at in sent]
    event["spans"] += [["receive", 10, a * MS, e * MS, list(peers)] for peers, a, e in received]
    return event


def test_a_message_is_a_meeting_of_two():
    """Rank 1 waits from 0 for what rank 0 sends at 30 and has it at 35; then the other way round.

    rank 0   compute 30 │ (send) compute 20 │ wait until 60, transfer until 64
    rank 1   wait 30, transfer 5 │ compute 25 │ (send)
    """
    ledger = compute_ledger(
        [
            warm_up(
                message(
                    1,
                    total=64,
                    sent=[((0, 1), 30)],
                    received=[((1, 0), 50, 64)],
                    blocked=[(50, 64)],
                )
            ),
            warm_up(
                message(
                    1, total=64, received=[((0, 1), 0, 35)], sent=[((1, 0), 60)], blocked=[(0, 35)]
                )
            ),
            warm_up(step(1, total=64)),
        ]
    )
    assert seconds(ledger, *TIMES) == [
        (64, 0, 50, 10, 4, 10, 4),
        (64, 0, 29, 30, 5, 30, 5),
        (64, 0, 64, 0, 0, 0, 0),
    ]
    assert seconds(ledger, "caused") == [(30,), (10,), (0,)]


def test_collectives_of_different_groups_are_told_apart():
    """Ranks 0 and 2 meet, and 1 and 3; the order within a rank does not matter."""
    events = [[] for _ in range(4)]
    for rank, (arrived, ended) in enumerate([(10, 30), (5, 50), (20, 30), (40, 50)]):
        event = step(1, total=60, blocked=[(arrived, ended)])
        pair = [0, 2] if rank % 2 == 0 else [1, 3]
        event["spans"] = [["ring", 100, arrived * MS, ended * MS, pair]]
        events[rank] = warm_up(event)
    ledger = compute_ledger(events)
    assert seconds(ledger, "wait", "transfer") == [(10, 10), (35, 10), (0, 10), (0, 10)]
    assert seconds(ledger, "caused") == [(0,), (0,), (10,), (35,)]


def at(number, began, ended):
    """A step of one rank, from and until so many ms."""
    return {**step(number, total=ended - began), "t": began * MS}


def test_what_a_rank_is_late_counts_once():
    """Rank 1 is late in step 1, and rank 0 waits for it in step 2: 60 ms have passed, not 85."""
    steps = [[at(1, 0, 15), at(1, 0, 35)], [at(2, 15, 60), at(2, 35, 60)]]
    assert step_seconds(steps) == pytest.approx([0.035, 0.025])


def test_time_between_steps_is_in_none():
    """A look at the test set lies between them, and rank 1 comes back from it late."""
    steps = [[at(1, 0, 10), at(1, 0, 10)], [at(2, 100, 130), at(2, 110, 130)]]
    assert step_seconds(steps) == pytest.approx([0.010, 0.030])


def test_a_clock_that_began_anew_shares_nothing_with_the_step_before():
    assert step_seconds([[at(1, 900, 910)], [at(2, 0, 20)]]) == pytest.approx([0.010, 0.020])


def test_steps_that_do_not_tell_when_they_began_take_as_long_as_their_longest():
    steps = [[{"total": 3 * MS}, {"total": 5 * MS}], [{"total": 4 * MS}, {"total": 2 * MS}]]
    assert step_seconds(steps) == pytest.approx([0.005, 0.004])


@given(
    st.lists(
        st.lists(st.integers(1, 50), min_size=3, max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_steps_add_up_to_the_time_that_passed(computing):
    """Three ranks compute for so long in each step, and none ends it before all have."""
    steps, began = [], [0, 0, 0]
    for number, mine in enumerate(computing):
        ended = [max(b + c for b, c in zip(began, mine, strict=True)) + rank for rank in range(3)]
        steps.append([at(number, b, e) for b, e in zip(began, ended, strict=True)])
        began = ended
    assert sum(step_seconds(steps)) == pytest.approx(max(began) / 1000)


# Scripts: stretches instead of steps, numbered calls, several groups of the same ranks


def test_time_without_steps_is_told_per_second():
    """Rank 1 comes 30 ms late ten times a second; the stretches of ranks don't end together."""
    for numbered in (True, False):
        ledger = compute_ledger(loop_logs(seconds=4, slow=1, numbered=numbered))
        assert (ledger.steps, ledger.seconds, ledger.unit) == (0, 4.0, "second")
        assert ledger.collectives == 40
        assert [row.total_s for row in ledger.ranks] == [4.0, 4.0]
        assert ledger.ranks[0].exposed_wait_s == pytest.approx(1.2)
        assert ledger.ranks[1].caused_s == pytest.approx(1.2)
        assert ledger.ranks[1].compute_s == pytest.approx(4 - 0.16)
        assert ledger.to_json()["ranks"][0]["exposed_wait_ms"] == 300.0


def test_where_there_are_steps_what_lies_outside_is_not_counted():
    logs = [[*steps, *loops] for steps, loops in zip(ddp_logs(steps=5), loop_logs(), strict=True)]
    assert compute_ledger(logs) == compute_ledger(ddp_logs(steps=5))


def test_ranks_without_a_step_in_common_are_accounted_for_as_a_whole():
    """Only rank 0 has an optimizer."""
    one, other = loop_logs(seconds=2)
    mixed = [{**event, "event": "step", "step": n, "data": 0} for n, event in enumerate(one)]
    assert compute_ledger([mixed, other]).ranks == compute_ledger([one, other]).ranks


def test_an_attempt_before_a_restart_is_not_counted():
    first, second = loop_logs(seconds=3), loop_logs(seconds=2)
    logs = [[START, *a, START, *b] for a, b in zip(first, second, strict=True)]
    assert compute_ledger(logs) == compute_ledger(second)


def test_numbered_calls_find_each_other_where_one_is_missing():
    """Rank 0 did not log call 7; without numbers all calls behind it would be put beside others."""
    logs = loop_logs(seconds=2, slow=1)
    logs[0][0]["spans"] = [span for span in logs[0][0]["spans"] if span[5] != 7]
    ledger = compute_ledger(logs)
    assert ledger.collectives == 19
    assert ledger.ranks[1].caused_s == pytest.approx(19 * 0.030)


def test_groups_of_the_same_ranks_are_told_apart():
    """Ranks make the calls in another order; on rank 1, both go on at once, and b's for longer."""
    spans = [
        [
            ["all_reduce", 1, 0, 30 * MS, [], 0, "a"],
            ["all_reduce", 1, 40 * MS, 60 * MS, [], 0, "b"],
        ],
        [
            ["all_reduce", 1, 10 * MS, 60 * MS, [], 0, "b"],
            ["all_reduce", 1, 20 * MS, 30 * MS, [], 0, "a"],
        ],
    ]
    logs = [warm_up({**step(1, total=60), "spans": own}) for own in spans]
    assert seconds(compute_ledger(logs), "wait", "transfer") == [(20, 30), (30, 20)]


def test_time_in_which_a_rank_is_blocked_twice_counts_once():
    blocked = [(10, 40), (20, 50), (60, 70)]
    ledger = compute_ledger([warm_up(step(1, total=80, blocked=blocked, spans=[(0, 80)]))])
    assert seconds(ledger, "exposed_transfer", "compute") == [(50, 30)]
