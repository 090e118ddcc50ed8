"""Which runs a study of scaling is made of, and what their times come to."""

from __future__ import annotations

import itertools

import pytest

from drumline.bench.scaling.rows import (
    Parts,
    build_scaling_rows,
    fit_series,
    lost_shares,
    whole_steps,
)
from drumline.bench.scaling.spec import Count, plan_rounds, plan_scaling
from drumline.core.errors import SpecError, UsageError
from scalings import by_law, make_document, make_study, read


def cases(*words):
    return {case.name: case.spec for case in plan_scaling(read(*words))}


def test_one_rank_is_measured_once_for_all_series():
    found = cases("workers=4,1,2,2", "kinds=ddp,ring", "batch=100")
    assert {label: spec.data.batch for label, spec in found.items()} == {
        "alone": 100,
        "strong ddp ×2": 100,
        "strong ring ×2": 100,
        "weak ddp ×2": 200,
        "weak ring ×2": 200,
        "strong ddp ×4": 100,
        "strong ring ×4": 100,
        "weak ddp ×4": 400,
        "weak ring ×4": 400,
    }
    alone = found["alone"]
    assert (alone.world_size, alone.strategy.bucketed) == (1, False)
    assert {(spec.threads, spec.seed, spec.evaluate) for spec in found.values()} == {
        (1, 1234, False)
    }
    assert found["weak ring ×4"].strategy.kind == "ring"


def test_without_one_each_strategy_has_its_own_smallest_count():
    found = cases("workers=2,4", "kinds=ddp,ring", "batch=100")
    assert {label: spec.data.batch for label, spec in found.items()} == {
        "ddp ×2": 100,
        "ring ×2": 100,
        "strong ddp ×4": 100,
        "strong ring ×4": 100,
        "weak ddp ×4": 200,
        "weak ring ×4": 200,
    }


def test_nodes_have_links_and_are_slow_where_they_are_several():
    words = ("nodes=1,2,4", "link=1gbit", "slow_nodes.2.cpu=0.5", "kinds=ddp", "mode=strong")
    alone, two, four = cases(*words).values()
    assert (alone.nodes, alone.link.rate, two.nodes, two.link.rate) == (1, None, 2, 10**9)
    assert ([*two.slow_nodes], [*four.slow_nodes]) == ([], [2])
    assert read("nodes=2", "workers=1,2").counts == (Count(2, 1), Count(2, 2))


def test_every_round_has_all_cases_and_begins_elsewhere():
    plan = plan_scaling(read("workers=1,2,4"))
    runs = plan_rounds(plan, 3)
    rounds = [[run for run in runs if run.round == number] for number in range(3)]
    assert [run.round for run in runs] == sorted(run.round for run in runs)
    assert len({own[0].name for own in rounds}) == 3
    for own in rounds:
        assert len(own) == len(plan)
        assert {case.name for case in own} == {case.name for case in plan}
    assert len({run.slug for run in runs}) == len(runs)
    assert runs[1].slug == "strong-ddp-x2-round-1"


def test_speedups_and_efficiencies_of_a_law():
    document = make_document(by_law(0.1), "workers=1,2,4", "kinds=ddp", "batch=100")
    rows = {(row["mode"], row["ranks"]): row for row in document["rows"]}
    for (mode, ranks), row in rows.items():
        strong = mode == "strong"
        ideal = 1 / (0.1 + 0.9 / ranks) if strong else ranks / (1 + 0.1 * (ranks - 1))
        assert row["speedup"] == pytest.approx(ideal)
        assert row["efficiency"] == pytest.approx(ideal / ranks)
        assert row["lost"] == pytest.approx(1 - row["efficiency"])
        assert row["lost_wait"] == row["lost_transfer"] == pytest.approx(row["lost"] / 2)
        assert row["lost_compute"] == pytest.approx(0)
        assert row["ideal_s"] == pytest.approx(0.1 / ranks if strong else 0.1)
        assert row["samples_per_s"] == pytest.approx(row["batch"] / row["median_s"])
        assert row["step_low_s"] <= row["median_s"] <= row["step_high_s"]
        assert row["low_s"] == row["high_s"] == pytest.approx(row["median_s"])
    assert rows["strong", 1]["case"] == rows["weak", 1]["case"] == "alone"
    assert rows["strong", 4]["run_dirs"][0] == "/kept/strong-ddp-x4-round-1"
    strong, weak = document["fits"]
    assert (strong["law"], strong["points"]) == ("Amdahl", 2)
    assert strong["share"] == pytest.approx(0.1)
    assert (weak["law"], weak["error"] < 0.1) == ("Gustafson", True)
    assert "serial share 10 %" in document["laws"][0]
    assert "no number of ranks is faster than 10×" in document["laws"][0]


def test_speedups_are_taken_within_a_round():
    """A machine that is twice as slow in the second round changes times, and no ratio."""
    study = make_study(by_law(0.0, (1, 2, 1)), "workers=1,2", "kinds=ddp", "mode=strong")
    alone, two = build_scaling_rows(study, kept=False)
    assert alone.high_s > 1.5 * alone.median_s
    assert two.speedup_low == two.speedup == two.speedup_high == pytest.approx(2)
    assert two.run_dirs is None


def test_longer_compute_is_lost_time():
    def take(run):
        slower = 1.0 if run.count.ranks == 1 else 1.5
        compute = 0.1 / run.count.ranks * slower
        return Parts(compute=compute, data=0.0, wait=0.0, transfer=0.0, other=0.0)

    document = make_document(take, "workers=1,2", "mode=strong", "kinds=ddp")
    two = document["rows"][1]
    assert two["lost_compute"] == two["lost"] == pytest.approx(1 / 3)
    assert document["losses"] == [
        "strong ddp ×2: 33% of the ranks' time is lost: 33% longer compute"
    ]


def test_lost_shares_of_all_parts_add_up():
    base = Parts(compute=8.0, data=1.0, wait=0.5, transfer=0.25, other=0.25)
    parts = Parts(compute=5.0, data=1.0, wait=2.0, transfer=1.0, other=1.0)
    lost = lost_shares(parts, base, times=2, work=1)
    assert lost == Parts(compute=0.1, data=0.05, wait=0.175, transfer=0.0875, other=0.0875)
    assert sum(lost) == pytest.approx(1 - sum(base) / (2 * sum(parts)))


def test_crowded_counts_are_no_part_of_a_fit():
    def take(run):
        parts = by_law(0.1)(run)
        return parts if run.count.ranks < 4 else parts._replace(compute=1.0)

    words = ("workers=1,2,4", "kinds=ddp", "mode=strong")
    document = make_document(take, *words, cores=2)
    (fit,) = document["fits"]
    assert (fit["points"], fit["crowded"], fit["share"]) == (1, False, pytest.approx(0.1))
    assert [row["crowded"] for row in document["rows"]] == [False, False, True]
    (note,) = [note for note in document["notes"] if note.startswith("4 ranks on 2 cores: they")]
    assert note.endswith("no law is fitted to them")
    assert "does not tell whether the law holds" in document["laws"][-1]
    document = make_document(take, *words, cores=1)
    (fit,) = document["fits"]
    assert (fit["points"], fit["crowded"]) == (2, True)
    assert not any("fitted to them" in note for note in document["notes"])


def test_shares_outside_of_the_law_are_told():
    def take(factor):
        def parts(run):
            seconds = 0.1 * factor ** (run.count.ranks - 1)
            return Parts(compute=seconds, data=0.0, wait=0.0, transfer=0.0, other=0.0)

        return parts

    words = ("workers=1,2", "kinds=ddp", "mode=strong")
    (law, _) = make_document(take(0.4), *words)["laws"]
    assert "serial share −20 % (−20 % to −20 %), less than nothing" in law
    assert law.endswith("faster than the law allows, by larger caches")
    (law, _) = make_document(take(1.5), *words)["laws"]
    assert "serial share 200 % (200 % to 200 %), more than everything" in law
    assert law.endswith("more ranks are slower, which no law knows of")


def test_no_bound_is_told_where_the_share_may_be_nothing():
    def take(run):
        noise = 1.0 if run.count.ranks == 1 else (0.9, 1.1, 1.3)[run.round]
        seconds = 0.1 / run.count.ranks * noise
        return Parts(compute=seconds, data=0.0, wait=0.0, transfer=0.0, other=0.0)

    (law, _) = make_document(take, "workers=1,2", "kinds=ddp", "mode=strong")["laws"]
    assert "serial share 10 % (−" in law
    assert "no number of ranks" not in law


def test_runs_that_failed_are_missing_and_nothing_else():
    def take(run):
        return None if run.slug in ("alone-round-2", "strong-ddp-x4-round-1") else by_law(0.1)(run)

    words = ("workers=1,2,4", "kinds=ddp", "mode=strong")
    document = make_document(take, *words)
    assert [row["rounds"] for row in document["rows"]] == [2, 3, 2]
    assert "strong ddp ×4 has 2 of 3 rounds; the others failed" in document["notes"]
    assert document["rows"][2]["speedup"] == pytest.approx(1 / (0.1 + 0.9 / 4))
    (fit,) = document["fits"]  # from the one round that has all
    assert (fit["share"], fit["share_low"]) == (pytest.approx(0.1), None)


def test_without_the_smallest_count_there_is_no_speedup():
    def take(run):
        return None if run.name == "alone" else by_law(0.1)(run)

    study = make_study(take, "workers=1,2", "kinds=ddp", "mode=strong")
    (two,) = build_scaling_rows(study, kept=False)
    assert two.speedup is two.efficiency is two.lost is two.ideal_s is None
    assert two.median_s > 0
    assert fit_series(study) == []


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("workers=2,4",), "no 1 among the workers: all is held against 2 workers"),
        (("nodes=1,2", "workers=2"), "all is held against 1 node of 2 ranks"),
        (("workers=2",), "one count only: nothing to hold it against, and no law to fit"),
        (("repeats=1",), "one round: nothing tells how sure the numbers are"),
        (("threads=2", "workers=1,4"), "4 ranks of 2 threads each on 4 cores"),
        (
            ("nodes=1,2,4", "slow_nodes.3.cpu=0.5"),
            "node 3 is slow where it is one of several: with 4 nodes",
        ),
        ((), "each rank computes with 1 thread, at every count"),
    ],
)
def test_what_must_be_known_is_told(words, note):
    notes = make_document(by_law(0.1), "kinds=ddp", *words)["notes"]
    assert any(each.startswith(note) for each in notes), notes


def test_a_busy_machine_is_told():
    words = ("kinds=ddp", "repeats=1")
    assert not any("busy" in note for note in make_document(by_law(0.1), *words, load=1.9)["notes"])
    busy = make_document(by_law(0.1), *words, load=2.1)["notes"][-1]
    assert busy.startswith("the machine was busy before the first run (load 2.1 on 4 cores)")


def test_one_round_has_no_intervals_and_one_count_no_fit():
    document = make_document(by_law(0.1), "workers=2", "repeats=1", "kinds=ddp", "mode=weak")
    (row,) = document["rows"]
    assert (row["low_s"], row["speedup"], row["speedup_low"]) == (None, 1, None)
    assert document["fits"] == document["laws"] == document["losses"] == []


def logs(*samples):
    """Two ranks that share each step's samples."""
    return [
        [
            {"event": "start", "attempt": 0},
            *(
                {"event": "step", "step": number, "samples": (each + rank) // 2}
                for number, each in enumerate(samples, 1)
            ),
        ]
        for rank in (0, 1)
    ]


def test_the_short_step_at_the_end_of_an_epoch_does_not_count():
    found = whole_steps(logs(100, 100, 31, 100), batch=100)
    for log in found:
        assert [event.get("step") for event in log] == [None, 1, 2, 4]
    near = logs(99, 98, 99)  # partitions other than shuffle cut an epoch into near-equal steps
    assert whole_steps(near, batch=100) == near


def test_too_few_data_for_a_batch_are_told():
    with pytest.raises(UsageError, match="has 60 samples at most, not 100, since the data have no"):
        whole_steps(logs(60, 60), batch=100)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workers=0",), "must be 1 or more"),
        (("workers=1,-2",), "must be 1 or more"),
        (("workers=two",), "must be a whole number"),
        (("nodes=0,2",), "addresses for 1 to 254 nodes"),
        (("nodes=1,2", "workers=1,2"), "give the other one number, e.g. workers=1"),
        (("kinds=ddp,pipeline",), "'kinds=ddp,pipeline': pipeline splits the model"),
        (("kinds=rings",), "did you mean 'ring'?"),
        (("mode=week",), "did you mean 'weak'?"),
        (("batch=3", "workers=1,4"), "less than one sample for each of 4 ranks; set batch=4"),
        (("batch=65", "workers=2,4"), "does not share out to 2 ranks; set batch=66, or mode=str"),
        (("link=1gbit",), "set nodes=2 or more"),
        (("nodes=1,2", "slow_nodes.2.cpu=0.5"), "nodes run from 0 to 1"),
        (("data.batch=64",), "write batch=64"),
        (("data=shakespeare",), "cnn does not read shakespeare (text); set data=mnist-mini"),
        (("steps=1",), "must be 2 or more"),
        (("rounds=3",), "unknown key 'rounds'"),
        (("repeat=3",), "did you mean 'repeats'?"),
    ],
)
def test_words_that_make_no_study(words, why):
    with pytest.raises(SpecError) as caught:
        plan_scaling(read(*words))
    assert why in caught.value.message


def test_a_batch_that_is_enough_for_weak_scaling():
    named = cases("batch=1", "workers=1,4", "mode=weak", "kinds=ddp")
    assert named["weak ddp ×4"].data.batch == 4


def test_counts_by_themselves_are_powers_of_two_up_to_the_cores(monkeypatch):
    found = {}
    for cores in (1, 2, 3, 6, 64):
        monkeypatch.setattr("drumline.bench.scaling.spec.count_cores", lambda cores=cores: cores)
        found[cores] = read().workers
    assert found == {1: (1, 2), 2: (1, 2), 3: (1, 2), 6: (1, 2, 4), 64: (1, 2, 4, 8)}
    assert read("nodes=1,2").workers == (1,)
    assert all(b == 2 * a for a, b in itertools.pairwise(found[64]))
