"""Rows, fits and predictions of `bench collectives`, against literals."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from drumline.bench.communication.collectives import (
    CollectiveRow,
    Turn,
    build_rows,
    fit_rows,
    limit_s,
    path_of,
    payload,
    predict_rows,
)
from drumline.bench.communication.display import draw_collectives
from drumline.core.nodes import NodePlan
from drumline.probe.collectives import build_exercise
from drumline.report.intervals import quartiles
from drumline.report.plots import FigureStyle
from drumline.schedules.collectives import BY_BACKEND, PLANS, CollectiveCall


def turn(ns, wire, *, began=0, size=16, algorithm="ring", backend="gloo"):
    return Turn(algorithm=algorithm, backend=backend, size=size, began=began, ns=ns, wire=wire)


def nodes(*rates):
    return tuple(NodePlan(node=k, address=f"10.77.0.{k + 1}", rate=r) for k, r in enumerate(rates))


def row(size, seconds, *, algorithm="chunked_ring", ranks=4):
    return CollectiveRow(
        collective="all_reduce",
        algorithm=algorithm,
        backend="gloo",
        ranks=ranks,
        nodes=1,
        size=size,
        asked_size=size,
        rounds=1,
        times_s=[seconds],
        median_s=seconds,
        low_s=seconds,
        high_s=seconds,
        wait_s=0.0,
        transfer_s=seconds,
        algorithm_bandwidth=0.0,
        bus_bandwidth=0.0,
        wire_bytes=None,
        payload_bytes=None,
        link_share=None,
    )


def test_a_turn_takes_as_long_as_its_slowest_rank():
    fast = [turn(1000, 40), turn(5000, 42), turn(2000, 44)]
    slow = [turn(4000, 40), turn(3000, 41), turn(1000, 90)]
    (only,) = build_rows("all_reduce", [fast, slow], nodes(None, None))
    assert only.times_s == pytest.approx([4e-6, 5e-6, 2e-6])
    assert only.median_s == pytest.approx(4e-6)
    assert (only.low_s, only.high_s) == (pytest.approx(3e-6), pytest.approx(4.5e-6))
    assert (only.rounds, only.ranks, only.nodes, only.size) == (3, 2, 2, 16)
    assert only.algorithm_bandwidth == pytest.approx(16 / 4e-6)
    assert only.bus_bandwidth == pytest.approx(16 / 4e-6)
    assert only.wire_bytes == [42, 41]
    assert only.payload_bytes == [16, 16]
    assert only.link_share is None


def test_the_slowest_rank_waits_until_the_last_has_begun():
    early = [turn(5000, 0, began=100), turn(4000, 0, began=3000), turn(900, 0, began=0)]
    late = [turn(2600, 0, began=2500), turn(3000, 0, began=4000), turn(500, 0, began=2000)]
    (only,) = build_rows("all_reduce", [early, late], ())
    # 2400 + 2600, 1000 + 3000, and one that had its end before the other began: 900 + 0
    assert only.wait_s == pytest.approx(1000e-9)
    assert only.transfer_s == pytest.approx(2600e-9)
    assert only.median_s == pytest.approx(4000e-9)


def test_ranks_of_one_node_share_its_counter():
    logs = [[turn(1000, rank)] for rank in (10, 11, 20, 21)]
    (only,) = build_rows("all_reduce", logs, nodes(8_000_000, 8_000_000))
    assert only.wire_bytes == [10, 20]
    # whole buffers around the ring 0 1 | 2 3: three of them leave each node
    assert only.payload_bytes == [48, 48]
    assert only.link_share == pytest.approx(48e-6 / 1e-6)


def test_what_the_kernel_does_not_count_is_none():
    (only,) = build_rows("all_reduce", [[turn(1000, None)]] * 2, ())
    assert only.wire_bytes is None
    assert only.payload_bytes == [32]  # of both ranks: one host has one loopback


def test_rows_are_in_order_of_size_and_rivals_apart():
    turns = [turn(1, 0, size=32), turn(1, 0), turn(1, 0, backend="shm"), turn(1, 0, size=32)]
    rows = build_rows("all_reduce", [turns] * 2, ())
    assert [(each.size, each.backend, each.rounds) for each in rows] == [
        (16, "gloo", 1),
        (16, "shm", 1),
        (32, "gloo", 2),
    ]


def test_what_is_made_of_the_backends_collectives_is_known_from_outside_only():
    turns = [turn(1000, 0, algorithm="all_gather"), turn(2000, 0, algorithm="all_gather", size=32)]
    rows = build_rows("all_reduce", [turns] * 2, nodes(8_000_000, 8_000_000))
    assert [each.payload_bytes for each in rows] == [None, None]
    assert path_of(rows[0]) == (1, 16)
    assert rows[0].link_share == pytest.approx(16e-6 / 1e-6)
    ours = {algorithm for plans in PLANS.values() for algorithm in plans}
    assert not ours & set(BY_BACKEND), "else one of ours would be taken for the backend's"


@pytest.mark.parametrize(
    ("collective", "asked", "measured"),
    [
        ("scatter", 4, 12),
        ("scatter", 2**16, 65544),
        ("all_to_all", 12, 12),
        ("all_reduce", 4, 4),
        ("broadcast", 2**16, 2**16),
        ("barrier", 0, 0),
    ],
)
def test_parts_are_rounded_up_and_ranks_measure_what_rows_say(collective, asked, measured):
    logs = [[turn(1000, 0, size=asked, algorithm="linear")]] * 3
    (only,) = build_rows(collective, logs, ())
    assert (only.asked_size, only.size) == (asked, measured)
    exercise = build_exercise(collective, asked, rank=0, ranks=3)
    assert exercise.call.nbytes == measured
    assert max((4 * len(each) for each in exercise.buffers.values()), default=0) == measured
    assert only.payload_bytes != [0]  # something is sent


@pytest.mark.parametrize(
    ("algorithm", "rates", "seconds"),
    [
        ("chunked_ring", (8e6,) * 4, 1.5),  # 2(n−1)/n · b at 1 MB/s
        ("native", (8e6,) * 4, 1.5),
        ("ring", (8e6,) * 4, 3.0),
        ("linear", (8e6,) * 4, 3.0),  # rank 0 receives n−1, and sends n−1: each way at once
        ("chunked_ring", (8e6, None, None, None), 1.5),
        ("chunked_ring", (8e6, 8e6, 4e6, 8e6), 3.0),  # the slowest link is the limit
    ],
)
def test_the_limit_of_a_link(algorithm, rates, seconds):
    call = CollectiveCall(collective="all_reduce", algorithm=algorithm, ranks=4, elements=250_000)
    assert limit_s(call, nodes(*rates)) == pytest.approx(seconds)


def test_no_limit_without_a_shaped_link():
    call = CollectiveCall(collective="all_reduce", algorithm="ring", ranks=4, elements=4)
    assert limit_s(call, ()) is None
    assert limit_s(call, nodes(None, None)) is None


def test_what_the_backend_sends_is_its_own_business():
    call = CollectiveCall(collective="all_reduce", algorithm="native", ranks=4, elements=4)
    assert payload(call, 4) is None


def test_the_path_of_the_backend_is_one_round_of_the_least_bytes():
    assert path_of(row(1000, 1.0, algorithm="native")) == (1, 1500)
    assert path_of(row(1600, 1.0)) == (6, 2400)


def test_segments_of_a_piece_do_not_wait_for_each_other():
    assert path_of(row(2**25, 1.0)) == (6, 3 * 2**24)


def exact(size):
    """2 ms a message, 10 ns a byte."""
    return row(size, 6 * 2e-3 + 1.5 * size * 1e-8)


def test_alpha_and_beta_come_back():
    (found,) = fit_rows([exact(size) for size in (1600, 160_000, 1_600_000)])
    assert found.alpha_s == pytest.approx(2e-3)
    assert found.beta_s_per_byte == pytest.approx(1e-8)
    assert found.sizes == 3
    assert found.alpha_error_s is not None
    assert found.beta_error_s_per_byte is not None
    assert max(found.alpha_error_s, found.beta_error_s_per_byte) < 1e-6


def test_two_sizes_leave_no_error_to_tell_and_one_no_fit():
    (found,) = fit_rows([exact(1600), exact(1_600_000)])
    assert asdict(found)["alpha_error_s"] is None
    assert fit_rows([exact(1600)]) == []


def test_a_size_is_predicted_from_the_others_alone():
    rows = [exact(1600), exact(160_000), row(1_600_000, 1.0)]
    predicted = predict_rows(rows)[-1]
    assert predicted.predicted_s == pytest.approx(0.036)
    assert predicted.prediction_error == pytest.approx(0.036 - 1)
    assert predict_rows(rows[:2])[0].predicted_s is None


def test_rivals_do_not_predict_each_other():
    rows = [exact(1600), exact(160_000), row(1600, 1.0, algorithm="native")]
    assert [each.predicted_s for each in predict_rows(rows)] == [None] * 3


def test_quartiles():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_times_within_a_decade_have_more_than_one_label():
    style = FigureStyle()
    with style.drawing():
        (axes,) = draw_collectives(style, [row(2**16, 0.0021), row(2**20, 0.0062)]).axes
        labels = (*axes.yaxis.get_majorticklabels(), *axes.yaxis.get_minorticklabels())
        numbers = {"".join(filter(str.isdigit, label.get_text())) for label in labels}
    assert {"2", "3", "6"} <= numbers
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64KiB", "1MiB"]
