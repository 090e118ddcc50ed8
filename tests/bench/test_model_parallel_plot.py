"""The figure of the model-parallel benchmark has all that is promised, where it can be read."""

from itertools import combinations, pairwise
from types import SimpleNamespace

import pytest

from drumline.bench.model_parallel.display import draw_model_parallel
from drumline.report.plots import FigureStyle

STEPS = 5
ALONE = {
    "case": "alone",
    "median_s": 0.1,
    "low_s": 0.09,
    "high_s": 0.12,
    "samples_per_s": 640.0,
    "peak_bytes": [30_000_000],
    "link_bytes": None,
    "payload_bytes": [0],
    "bubble": None,
    "bubble_theory": None,
    "idle_s": [0.0],
    "losses": [4.0 - 0.1 * step for step in range(STEPS)],
}
PIPELINE = {
    **ALONE,
    "case": "pipeline interleaved ×4 torch",
    "peak_bytes": [20_000_000, 12_000_000],
    "payload_bytes": [2_000_000, 3_500_000],
    "bubble": 0.43,
    "bubble_theory": 0.2,
    "idle_s": [0.02, 0.031],
}
BY_TORCH = {**ALONE, "case": "tensor torch", "payload_bytes": None, "idle_s": None}


def draw(measured):
    style = FigureStyle()
    with style.drawing():
        return draw_model_parallel(style, measured)


@pytest.fixture(scope="module")
def figure():
    others = [{**PIPELINE, "case": f"pipeline ×{count}"} for count in range(2, 9)]
    drawn = draw([SimpleNamespace(**row) for row in (ALONE, PIPELINE, BY_TORCH, *others)])
    drawn.canvas.draw()
    return drawn


def test_each_panel_has_its_numbers_and_a_dot_for_each_rank(figure):
    panels = {}
    for axes in figure.axes[:6]:
        texts = [text.get_text() for text in axes.texts[:3]]
        dots = [sorted(line.get_xdata()) for line in axes.lines[:2]]
        panels[axes.get_title()] = (texts, dots)
    assert panels == {
        "a step of all ranks": (["100", "100", "100"], []),
        "throughput": (["640", "640", "640"], []),
        "peak memory (a dot: a rank)": (["30", "20", "30"], [[30], [12, 20]]),
        "bytes sent (a dot: a rank)": (["0", "3.5", "—"], [[0], [2, 3.5]]),
        "bubble (a line: by theory)": (["—", "43|20", "—"], []),
        "idle time (a dot: a rank)": (["0", "31", "—"], [[0], [20, 31]]),
    }


def test_no_word_is_cut_off_or_covers_another(figure):
    page = figure.bbox
    words = [word for axes in figure.axes for word in (axes.title, axes.xaxis.label)]
    words += [tick for axes in figure.axes[0:4:3] for tick in axes.get_yticklabels()]
    boxes = [word.get_window_extent() for word in words if word.get_text()]
    boxes += [figure.legends[0].get_window_extent()]
    for box in boxes:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1
        assert page.y0 <= box.y0 <= box.y1 <= page.y1
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for axes in figure.axes[:6]:
        ends = [text.get_window_extent().x1 for text in axes.texts]
        assert max(ends) < axes.get_window_extent().x1


def test_no_marker_of_a_curve_hides_another(figure):
    marked = {}
    for line in figure.axes[6].lines[1:]:
        first, every = line.get_markevery()
        for step in range(first, STEPS, every):
            marked.setdefault(step, []).append(line)
    assert len(figure.axes[6].lines) == 10
    for lines in marked.values():
        for inner, outer in pairwise(lines):
            assert outer.get_markersize() > inner.get_markersize()
            assert outer.get_markerfacecolor() == "none"
