"""The figure of a study of scaling has all that is promised, where it can be read."""

import io
from itertools import combinations

import pytest
from rich.console import Console

from drumline.bench.scaling.display import draw_scaling_study, scaling_table
from drumline.report.plots import FigureStyle
from scalings import by_law, make_result

LONG = "kinds=ddp,halving_doubling"


def draw(measured):
    style = FigureStyle()
    with style.drawing():
        return draw_scaling_study(style, measured)


@pytest.fixture(scope="module")
def result():
    return make_result(by_law(0.1, (1.0, 1.1, 0.95)), "workers=1,2,4,8", LONG, cores=4)


@pytest.fixture(scope="module")
def figure(result):
    drawn = draw(result)
    drawn.canvas.draw()
    return drawn


def test_each_panel_has_its_title_unit_ideal_and_error_bars(figure):
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "strong: time (batch 128 in all)",
        "strong: speed-up",
        "strong: efficiency",
        "strong: what a step is made of",
        "weak: time (batch 128 on each rank)",
        "weak: speed-up",
        "weak: efficiency",
        "weak: what a step is made of",
    ]
    lines = [axes for axes in figure.axes if "made of" not in axes.get_title()]
    for axes in lines:
        assert axes.get_xlabel() == "workers"
        assert axes.get_ylabel()
        assert len(axes.containers) == 2  # an error bar for each strategy
        assert all(container.has_yerr for container in axes.containers)
    ideal = lines[1].lines[0]
    assert (ideal.get_xdata()[-1], ideal.get_ydata()[-1]) == (8, 8)


def test_the_laws_are_drawn_beside_the_speedups(figure):
    strong, weak = figure.axes[1], figure.axes[5]
    for axes, law in ((strong, "Amdahl"), (weak, "Gustafson")):
        told = [text.get_text() for text in axes.get_legend().get_texts()]
        assert [each.split(":")[0] for each in told] == ["ddp", "halving_doubling"]
        assert axes.get_legend().get_title().get_text() == f"serial share, by {law}"
        inside, panel = axes.get_legend().get_window_extent(), axes.get_window_extent()
        assert panel.x0 <= inside.x0 <= inside.x1 <= panel.x1
    (curve,) = [line for line in strong.lines if line.get_label() == "ddp: 10 %"]
    assert curve.get_ydata()[-1] == pytest.approx(1 / (0.1 + 0.9 / 8), rel=0.05)


def test_the_bars_add_up_to_a_step(figure, result):
    axes = figure.axes[3]
    rows = {row.case: row for row in result.rows if row.mode == "strong"}
    ends = [0.0] * len(rows)
    for container in axes.containers:
        ends = [end + bar.get_width() for end, bar in zip(ends, container, strict=True)]
    names = ("compute_s", "data_s", "wait_s", "transfer_s", "other_s")
    steps = [sum(getattr(row, name) for name in names) for row in rows.values()]
    assert ends == pytest.approx([1e3 * step for step in steps])
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels[:3] == ["alone", "ddp ×2", "halving_doubling ×2"]


def test_no_word_is_cut_off_or_covers_another(figure):
    page = figure.bbox
    words = [
        word for axes in figure.axes for word in (axes.title, axes.xaxis.label, axes.yaxis.label)
    ]
    for axes in figure.axes:
        low, high = sorted(axes.get_ylim())  # ticks beyond are there, but nobody sees them
        ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        words += [tick for place, tick in ticks if low <= place <= high]
    boxes = [word.get_window_extent() for word in words if word.get_text()]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for box in boxes:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1
        assert page.y0 <= box.y0 <= box.y1 <= page.y1
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for axes in (figure.axes[3], figure.axes[7]):
        ends = [text.get_window_extent().x1 for text in axes.texts]
        assert max(ends) < axes.get_window_extent().x1


@pytest.mark.parametrize(
    "words",
    [
        ("workers=2", "repeats=1", "mode=weak"),
        ("nodes=1,2", "workers=2", "mode=strong", LONG),
    ],
)
def test_what_is_not_known_is_not_drawn(words):
    result = make_result(by_law(0.0), *words)
    drawn = draw(result)
    drawn.canvas.draw()
    assert len(drawn.axes) == 4 * len(result.spec.mode)


def test_a_figure_without_the_smallest_count():
    def take(run):
        return None if run.name == "alone" else by_law(0.1)(run)

    result = make_result(take, "workers=1,2", "mode=strong", "kinds=ddp")
    draw(result).canvas.draw()


def test_the_table_fits_into_80_columns(result):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(scaling_table(result.rows, smallest="1 worker"))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    (alone,) = [line for line in lines[:6] if line.startswith("alone")]
    assert alone.split()[:2] == ["alone", "1"]
    assert sum(line.startswith("halving_doubling") for line in lines) == 6
