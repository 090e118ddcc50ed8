"""Labs 1 and 3, written up from run directories that nobody trained."""

import math
import re

import pytest

from drumline.core.errors import UsageError
from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel.chapters import LAB as DATA_PARALLEL
from drumline.labs.data_parallel.chapters import describe_adam
from drumline.labs.data_parallel.experiments import ALPHA, KINDS, label_groups
from drumline.labs.data_parallel.plots import draw_averaging, draw_overlap
from drumline.labs.data_parallel.tables import AloneRow, AveragingRow, LocalLossRow, OverlapRow
from drumline.labs.experiment import LabSettings, Training
from drumline.labs.optimizers.chapters import LAB as OPTIMIZERS
from drumline.labs.optimizers.chapters import describe_rates
from drumline.labs.optimizers.tables import RateRow
from drumline.labs.plots import Plot
from drumline.labs.repeats import smoothed
from drumline.labs.runner import load_lab
from drumline.labs.text import lab_text
from drumline.report.intervals import Interval
from drumline.report.page.blocks import Picture
from drumline.report.page.table import Table
from drumline.report.plots import FigureStyle, error_bars, render_inline
from drumline.report.runs.record import CurvePoint
from drumline.spec.load import read_spec
from lab_runs import SAMPLES, make_runs, quotes_of, words_of, wrong_quotes

LABS = {1: OPTIMIZERS, 3: DATA_PARALLEL}
PICTURES = {
    1: ["descent", "accuracy", "engines", "profile", "rates", "chance"],
    3: ["labels", "overlap", "strategies", "hidden", "scaling", "equal_cost", "batches"],
}


@pytest.fixture(scope="module", params=LABS)
def whole(request, tmp_path_factory):
    """All runs of a lab: its number, the lab, what the runs left."""
    lab = LABS[request.param]
    return request.param, lab, make_runs(lab, tmp_path_factory.mktemp("whole"))


def new_chapter(lab, section):
    """A chapter that is still empty."""
    return Chapter(text=lab_text(lab, "en").within(section))


BAD = re.compile(r"\b(nan|None|inf)\b")


def test_both_languages_say_what_the_data_say(whole):
    number, lab, results = whole
    found = {lang: lab.write_up(results, lang) for lang in ("en", "zh")}
    for lang, one in found.items():
        assert wrong_quotes(one) == []
        assert not BAD.search(words_of(one, lang))
    values = [[(q.table, q.row, q.column) for q in quotes_of(one)] for one in found.values()]
    assert len(values[0]) > 50
    assert sorted(values[0]) == sorted(values[1])  # where a number stands depends on the language
    drawn = [block.name for block in found["en"].results if isinstance(block, Picture)]
    assert drawn == PICTURES[number]


def test_pictures_can_be_drawn(whole):
    _, lab, results = whole
    style = FigureStyle(lang="en")
    for block in lab.write_up(results, "en").results:
        if isinstance(block, Picture):
            with style.drawing():
                figure = block.draw(style)
            assert all(axes.get_title() or axes.get_xlabel() for axes in figure.axes[1:])


@pytest.mark.slow
@pytest.mark.parametrize("number", LABS)
def test_pictures_can_be_drawn_from_what_is_left(number, tmp_path):
    results = make_runs(LABS[number], tmp_path, without=_most_of(number))
    for block in LABS[number].write_up(results, "zh").results:
        if isinstance(block, Picture):
            assert "<svg" in render_inline(block, "zh")


def _most_of(number):
    names = [one.name for one in LABS[number].experiments(LabSettings())]
    return [name for name in names if not name.endswith("-1") or name in ("sgd-1", "shuffle-1")]


@pytest.mark.parametrize("number", LABS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_failed_is_left_out(number, lang, tmp_path):
    results = make_runs(LABS[number], tmp_path, without=_most_of(number))
    found = LABS[number].write_up(results, lang)
    assert found.results
    assert wrong_quotes(found) == []
    assert not BAD.search(words_of(found, lang))


@pytest.mark.parametrize("number", LABS)
def test_where_nothing_came_to_its_end_the_page_says_so(number, tmp_path):
    names = [one.name for one in LABS[number].experiments(LabSettings())]
    found = LABS[number].write_up(make_runs(LABS[number], tmp_path, without=names), "en")
    assert found.results == []
    assert "Nothing came to its end" in str(found.summary)


def test_a_learning_rate_that_diverged_is_a_finding(tmp_path):
    results = make_runs(OPTIMIZERS, tmp_path, diverged=["momentum-lr0.2"])
    found = OPTIMIZERS.write_up(results, "en")
    assert "With 0.2 it diverged." in words_of(found, "en")
    by_name = {one.name: one for one in OPTIMIZERS.experiments(LabSettings())}
    assert by_name["momentum-lr0.2"].may_diverge
    assert not by_name["momentum-1"].may_diverge
    more = make_runs(OPTIMIZERS, tmp_path / "more", diverged=["gd-1", "gd-lr1"])
    assert "From 0.1 up it diverged." in words_of(OPTIMIZERS.write_up(more, "en"), "en")


def test_a_rate_that_is_best_at_the_border_may_not_be_the_best():
    rows = {"adam": [], "sgd": [], "gd": []}
    for lr, adam, sgd in ((0.01, 0.7, 0.9), (0.1, 0.8, 0.8), (1, 0.9, 0.7)):
        for optimizer, accuracy in (("adam", adam), ("sgd", sgd), ("gd", 0.5 + 0.1 * (lr == 0.1))):
            row = {"factor": lr, "lr": lr, "loss": 1.0, "accuracy": accuracy, "ended": "done"}
            rows[optimizer].append(RateRow(optimizer=optimizer, **row))
    chapter = new_chapter("optimizers", "rates")
    chapter.tabulate("rates", RateRow, [row for own in rows.values() for row in own])
    for own in rows.values():
        describe_rates(chapter, own)
    said = dict(zip(rows, map(str, chapter.sentences), strict=True))
    assert "did best with 1: 90.00 %. That is the largest rate tried" in said["adam"]
    assert "did best with 0.01: 90.00 %. That is the smallest rate tried" in said["sgd"]
    assert "rate tried:" not in said["gd"]


def test_one_interval_that_is_unknown_does_not_hide_the_others():
    values = [
        Interval(middle=5.0, low=4.0, high=7.0),
        Interval(middle=9.0, low=None, high=None),
        Interval(middle=2.0, low=2.5, high=3.0),
    ]
    down, up = error_bars(values)
    assert (down[0], up[0], down[2], up[2]) == (1, 2, 0, 1)
    assert math.isnan(down[1])
    assert math.isnan(up[1])
    assert error_bars(values[1:2]) is None
    assert error_bars([None]) is None


def test_what_is_told_at_equal_time_has_its_interval(whole):
    number, lab, results = whole
    if number == 3:
        found = lab.write_up(results, "en")
        tables = {table.name: table for table in found.tables}
        for row in tables["equal_time"].rows:
            assert row["loss_low"] <= row["loss"] <= row["loss_high"]
            assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert all(row["accuracy_low"] is not None for row in tables["scaling"].rows)


def test_a_difference_between_two_accuracies_has_no_sign():
    chapter = new_chapter("data_parallel", "averaging")
    rows = [
        AveragingRow(
            kind=kind, optimizer="adam", averaged="parameters", accuracy=accuracy, test_loss=None
        )
        for kind, accuracy in (("shuffle", 0.953), ("by_label", 0.935))
    ]
    describe_adam(chapter, chapter.tabulate("averaging", AveragingRow, rows), "parameters")
    (said,) = map(str, chapter.sentences)
    assert "by label ended at 93.50 % with Adam and averaged parameters, shuffle at 95.30 %" in said
    assert "a difference of 1.80 points" in said


def test_many_ranks_are_drawn_without_what_has_no_room():
    """Of sixteen, numbers would lie over each other, and a legend over the curves."""
    many = range(16)
    overlaps = Table("overlaps", OverlapRow)
    local = Table("local_losses", LocalLossRow)
    for rank in many:
        for kind in ("shuffle", "by_label"):
            local.append(LocalLossRow(kind=kind, rank=rank, step=1, loss=1.0 + rank))
        for span in ("first_epoch", "run"):
            for other in many:
                pair = {"kind": "shuffle", "span": span, "rank": rank, "other": other}
                overlaps.append(OverlapRow(**pair, common=1, share=0.5))
    nothing = Table("averaging", AveragingRow), Table("alone", AloneRow)
    text = lab_text("data_parallel", "en")
    overlap = Plot(lang="en", text=text.within("partitions.figures.overlap"))
    hidden = Plot(lang="en", text=text.within("averaging.figures.hidden"))
    with overlap.drawing():
        for axes in draw_overlap(overlap, overlaps).axes:
            assert {text.get_text() for text in axes.texts} == {""}
            assert len(axes.get_xticks()) == 6
        losses = draw_averaging(hidden, local, *nothing).axes[0]
    named = [text.get_text() for text in losses.get_legend().get_texts()]
    assert named == ["shuffle, each rank", "by label, each rank"]


def test_a_run_that_logged_nothing_is_left_out(tmp_path):
    results = make_runs(OPTIMIZERS, tmp_path)
    for log in (tmp_path / "runs" / "sgd-2" / "events").iterdir():
        log.write_text("")
    found = OPTIMIZERS.write_up(results, "en")
    assert wrong_quotes(found) == []
    ends = next(table for table in found.tables if table.name == "ends")
    assert {row["optimizer"]: row["repeats"] for row in ends.rows}["sgd"] == 2


def test_explanations_are_given_only_where_the_numbers_bear_them(tmp_path):
    said = words_of(OPTIMIZERS.write_up(make_runs(OPTIMIZERS, tmp_path), "en"), "en")
    assert "Seed by seed, " in said
    assert "which is more than rounding" in said  # made-up losses of GD in chunks and at once
    assert "not what is computed" not in said


def test_the_text_names_every_partition():
    for lang in ("en", "zh"):
        names = lab_text("data_parallel", lang).names("kind")
        assert [*names] == [*KINDS]
        assert f"α = {ALPHA:g}" in names["dirichlet"]


def test_labels_are_dealt_out_to_any_number_of_ranks():
    assert label_groups(4) == ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9))
    for ranks in (2, 3, 5, 8, 10, 12):
        groups = label_groups(ranks)
        assert len(groups) == ranks
        assert all(groups)
        assert {label for group in groups for label in group} == set(range(10))


def test_on_simulated_nodes_every_rank_is_a_node():
    specs = {one.name: one.spec for one in DATA_PARALLEL.experiments(LabSettings(nodes=3))}
    assert (specs["by_label-1"].nodes, specs["by_label-1"].workers) == (3, 1)
    assert (specs["workers2-1"].nodes, specs["workers1-1"].nodes) == (2, 1)
    with pytest.raises(UsageError, match="nodes=16"):
        DATA_PARALLEL.experiments(LabSettings(nodes=40))


def test_a_link_needs_nodes_to_join():
    with pytest.raises(UsageError, match="set nodes=2 or more"):
        read_spec(LabSettings, ["link=1gbit"], "nodes=2")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_lab_runs_on_nodes(number):
    experiments = load_lab(number).experiments(LabSettings(nodes=2))
    assert 2 in {one.spec.nodes for one in experiments if isinstance(one, Training)}


def test_a_loss_that_ran_away_and_came_back_is_not_forgotten():
    losses = [2.3, 4.5e30, *[2.5] * 30]
    curve = [
        CurvePoint(run="a", step=k, samples=k, seconds=k, loss=loss)
        for k, loss in enumerate(losses, 1)
    ]
    assert [point.loss for point in smoothed(curve, 4)][-4:] == [2.5] * 4


def test_optimizers_on_nodes_pay_for_averaging(tmp_path):
    settings = LabSettings.model_validate({"nodes": 2, "link": "1gbit"})
    results = make_runs(OPTIMIZERS, tmp_path, settings=settings)
    assert {one.spec.nodes for one in OPTIMIZERS.experiments(settings)} == {2}
    found = OPTIMIZERS.write_up(results, "en")
    assert wrong_quotes(found) == []
    assert "Between nodes, averaging the gradients took " in words_of(found, "en")
    (profile,) = (table for table in found.tables if table.name == "profile")
    (sgd,) = profile.where(optimizer="sgd")
    row = profile.rows[profile.row_of(sgd)]
    assert row["samples"] == SAMPLES // 6, "of both ranks together"
    parts = ("data", "compute", "communication", "update")
    assert sum(row[f"{part}_ms"] for part in parts) == pytest.approx(row["step_ms"], rel=0.2)
