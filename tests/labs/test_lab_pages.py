"""Labs 1 and 3, written up from run directories that nobody trained."""

import re

import pytest

from drumline.core.errors import UsageError
from drumline.core.lab import LabSettings
from drumline.core.spec_file import read_words
from drumline.labs.catalogue import find_lab
from drumline.labs.curves import smoothed
from drumline.labs.data_parallel import LAB as DATA_PARALLEL
from drumline.labs.data_parallel.cases import label_groups
from drumline.labs.optimizers import LAB as OPTIMIZERS
from drumline.labs.writing import build_report
from drumline.report.page.blocks import Picture
from drumline.report.page.pen import Pen
from drumline.report.page.picture import render_inline
from drumline.report.page.prose import Tongue
from drumline.report.record import Point
from lab_runs import make_runs, quotes_of, words_of, wrong_quotes

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


BAD = re.compile(r"\b(nan|None|inf)\b")


def test_both_languages_say_what_the_data_say(whole):
    number, lab, results = whole
    found = {lang: lab.write_up(results, Tongue(lang)) for lang in ("en", "zh")}
    for lang, one in found.items():
        assert wrong_quotes(one) == []
        assert not BAD.search(words_of(one, lang))
    values = [[(q.sheet, q.row, q.column) for q in quotes_of(one)] for one in found.values()]
    assert len(values[0]) > 50
    assert sorted(values[0]) == sorted(values[1])  # where a number stands depends on the language
    drawn = [block.name for block in found["en"].results if isinstance(block, Picture)]
    assert drawn == PICTURES[number]


def test_pictures_can_be_drawn(whole):
    _, lab, results = whole
    pen = Pen(lang="en")
    for block in lab.write_up(results, Tongue("en")).results:
        if isinstance(block, Picture):
            with pen.drawing():
                figure = block.draw(pen)
            assert all(axes.get_title() or axes.get_xlabel() for axes in figure.axes[1:])


@pytest.mark.soak
@pytest.mark.parametrize("number", LABS)
def test_pictures_can_be_drawn_from_what_is_left(number, tmp_path):
    results = make_runs(LABS[number], tmp_path, without=_most_of(number))
    for block in LABS[number].write_up(results, Tongue("zh")).results:
        if isinstance(block, Picture):
            assert "<svg" in render_inline(block, "zh")


def _most_of(number):
    names = [one.name for one in LABS[number].experiments(LabSettings())]
    return [name for name in names if not name.endswith("-1") or name in ("sgd-1", "shuffle-1")]


@pytest.mark.parametrize("number", LABS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_failed_is_left_out(number, lang, tmp_path):
    results = make_runs(LABS[number], tmp_path, without=_most_of(number))
    found = LABS[number].write_up(results, Tongue(lang))
    assert found.results
    assert wrong_quotes(found) == []
    assert not BAD.search(words_of(found, lang))


@pytest.mark.parametrize("number", LABS)
def test_where_nothing_came_to_its_end_the_page_says_so(number, tmp_path):
    names = [one.name for one in LABS[number].experiments(LabSettings())]
    found = LABS[number].write_up(make_runs(LABS[number], tmp_path, without=names), Tongue("en"))
    assert found.results == []
    assert "Nothing came to its end" in str(found.summary)


def test_a_learning_rate_that_diverged_is_a_finding(tmp_path):
    results = make_runs(OPTIMIZERS, tmp_path, diverged=["momentum-lr0.2"])
    found = OPTIMIZERS.write_up(results, Tongue("en"))
    assert "With 0.2 it diverged." in words_of(found, "en")
    by_name = {one.name: one for one in OPTIMIZERS.experiments(LabSettings())}
    assert by_name["momentum-lr0.2"].may_diverge
    assert not by_name["momentum-1"].may_diverge
    more = make_runs(OPTIMIZERS, tmp_path / "more", diverged=["gd-1", "gd-lr1"])
    assert "From 0.1 up it diverged." in words_of(OPTIMIZERS.write_up(more, Tongue("en")), "en")


def test_a_run_that_logged_nothing_is_left_out(tmp_path):
    results = make_runs(OPTIMIZERS, tmp_path)
    for log in (tmp_path / "runs" / "sgd-2" / "events").iterdir():
        log.write_text("")
    found = OPTIMIZERS.write_up(results, Tongue("en"))
    assert wrong_quotes(found) == []
    ends = next(sheet for sheet in found.sheets if sheet.name == "ends")
    assert {row["optimizer"]: row["repeats"] for row in ends.rows}["sgd"] == 2


def test_explanations_are_given_only_where_the_numbers_bear_them(tmp_path):
    said = words_of(OPTIMIZERS.write_up(make_runs(OPTIMIZERS, tmp_path), Tongue("en")), "en")
    assert "Seed by seed, " in said
    assert "which is more than rounding" in said  # made-up losses of GD in chunks and at once
    assert "not what is computed" not in said


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
        read_words(LabSettings, ["link=1gbit"], "nodes=2")


def test_experiments_of_one_rank_are_not_said_to_be_on_nodes(tmp_path):
    results = make_runs(OPTIMIZERS, tmp_path)
    results.settings = LabSettings(nodes=2)
    experiments = OPTIMIZERS.experiments(results.settings)
    report = build_report(OPTIMIZERS, find_lab(1), results, experiments, {}, "", Tongue("en"))
    (parameters,) = [one for one in report.sections if one.slug == "parameters"]
    assert "'this host'" in str(parameters.blocks)
    assert "simulated nodes" not in str(parameters.blocks)


def test_a_loss_that_ran_away_and_came_back_is_not_forgotten():
    losses = [2.3, 4.5e30, *[2.5] * 30]
    curve = [Point(step=k, samples=k, seconds=k, loss=loss) for k, loss in enumerate(losses, 1)]
    assert [point.loss for point in smoothed(curve, 4)][-4:] == [2.5] * 4
