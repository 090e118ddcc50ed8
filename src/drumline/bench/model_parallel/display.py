"""`drumline bench model-parallel` in a terminal, a row for each form, and its figure.

Lab 4 draws its bars and curves by the same functions.

    step  │ throughput │ memory      a bar for each form, by one list of names;
    bytes │ bubble     │ idle        a dot for each rank where ranks differ
    ──────┴────────────┴───────
    loss curves of all               they lie on each other: that is the point
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.model_parallel.rows import CaseRow
from drumline.core.formatting import format_bytes
from drumline.report.plots import COLORS, FigureStyle
from drumline.report.tables import NOTHING, FittingColumn, FittingTable, format_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""
_BAR_IN, _CURVES_IN, _FRAME_IN = 0.25, 3.8, 0.9
"""heights in inches"""
_NUMBERS = 7
"""size of the numbers beside bars"""


def model_table(rows: Sequence[CaseRow], *, nodes: int) -> RenderableType:
    """Show `bench model-parallel`'s table of what each form costs."""
    columns: list[FittingColumn[CaseRow]] = [
        FittingColumn("form", lambda row: row.case, justify="left"),
        FittingColumn("ms", lambda row: milliseconds(row.median_s)),
        FittingColumn("samples/s", lambda row: f"{row.samples_per_s:.0f}", drop_order=1),
        FittingColumn("speed", lambda row: format_known("{:.2f}×", row.speedup), drop_order=6),
        FittingColumn(
            "MB", lambda row: _largest(row.peak_bytes, lambda n: f"{n / 1e6:.0f}"), drop_order=7
        ),
        FittingColumn(
            "bytes",
            lambda row: _largest(row.link_bytes or row.payload_bytes, format_bytes),
            drop_order=5,
        ),
        FittingColumn("bubble", _bubble, drop_order=4),
        FittingColumn("idle", lambda row: _largest(row.idle_s, milliseconds), drop_order=2),
        FittingColumn("loss", lambda row: f"{row.loss:.4f}", drop_order=3),
    ]
    table = FittingTable(rows=rows, columns=columns, gap=1, elsewhere="--json, --csv")
    return Group(table, Text(_legend(nodes)))


def describe_agreement(rows: Sequence[CaseRow]) -> str | None:
    """Say how far the losses of all benched forms lie apart; None: nothing to compare."""
    others = [row for row in rows if row.loss_difference is not None and row.form != "alone"]
    if not others:
        return None
    worst = max(others, key=lambda row: row.loss_difference or 0.0)
    apart = worst.loss_difference or 0.0
    if apart == 0:
        return "losses: the same bits as alone, in every step of every form"
    text = f"losses: at most {apart:.1e} from alone, in any step of any form ({worst.case})"
    if apart > _AGREE:
        text += (
            "\nthat is more than rounding; dropout, for one, draws other numbers on other ranks: "
            "set model.dropout=0"
        )
    return text


def _legend(nodes: int) -> str:
    sender = "node" if nodes > 1 else "rank"
    return (
        "ms: median step, until its slowest rank is done. speed: against one rank alone.\n"
        f"MB: peak memory of the largest rank. bytes: per step, from the busiest {sender}.\n"
        "bubble: share of the ranks' time without work, measured|theory.\n"
        "idle: ms per step in which the idlest rank did nothing but wait and transfer."
    )


def milliseconds(seconds: float) -> str:
    """Write a benched step's time in three digits or four: `8.3`, `99.5`, `1200`."""
    return f"{seconds * 1e3:.1f}" if seconds < 0.09995 else f"{seconds * 1e3:.0f}"


def _largest(values: Sequence[float] | None, write: Callable[[float], str]) -> str:
    """Write what the rank or node has that has most; where nobody noted it, nothing."""
    return NOTHING if values is None else write(max(values))


def _bubble(row: CaseRow) -> str:
    if row.bubble is None or row.bubble_theory is None:
        return NOTHING
    return f"{100 * row.bubble:.0f}|{row.bubble_theory:.0%}"


def draw_model_parallel(style: FigureStyle, rows: Sequence[CaseRow]) -> Figure:
    """Draw `bench model-parallel`'s figure: six panels of bars, and all loss curves."""
    bars_in = _FRAME_IN + _BAR_IN * len(rows)
    figure = style.figure(width=11, height=2 * bars_in + _CURVES_IN)
    grid = figure.add_gridspec(3, 3, height_ratios=[bars_in, bars_in, _CURVES_IN])
    names = [row.case for row in rows]
    colors = ["0.6", *(style.color(number) for number in range(len(rows) - 1))]
    for number, (title, unit, bars) in enumerate(_panels(rows)):
        axes = figure.add_subplot(grid[divmod(number, 3)])
        draw_labelled_bars(style, axes, bars, colors)
        style.finish(axes, title=title, x=unit, y="")
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.tick_params(labelleft=number % 3 == 0)
    curves = figure.add_subplot(grid[2, :])
    draw_loss_curves(style, curves, {row.case: row.losses for row in rows}, colors, base=names[0])
    title, y = "training loss: all forms on one axis", "loss of the whole batch"
    style.finish(curves, title=title, x="step", y=y, legend=False)
    title = "curves lie on each other; each is marked at steps of its own"
    style.legend(figure, curves, columns=4, title=title, loc="outside lower center")
    return figure


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A bar for each case, with what is written at its end and marked beside it."""

    values: Sequence[float | None]
    labels: Sequence[str]
    spread: Sequence[tuple[float | None, float | None]] = ()
    """from where to where each spreads"""
    ticks: Sequence[float | None] = ()
    """what theory says of each"""
    dots: Sequence[Sequence[float] | None] = ()
    """the values of its ranks"""


def draw_labelled_bars(style: FigureStyle, axes: Axes, bars: Bars, colors: Sequence[str]) -> None:
    """Draw bars of `bench model-parallel`, each with its label behind its marks."""
    ends = [value or 0.0 for value in bars.values]
    axes.barh(range(len(ends)), ends, 0.68, color=colors)
    for place, (low, high) in enumerate(bars.spread):
        if low is not None and high is not None:
            axes.hlines(place, low, high, color=style.ink, lw=1)
            ends[place] = max(ends[place], high)
    for place, tick in enumerate(bars.ticks):
        if tick is not None:
            axes.vlines(tick, place - 0.42, place + 0.42, color=style.ink, lw=1.5)
            ends[place] = max(ends[place], tick)
    for place, dots in enumerate(bars.dots):
        if dots:
            axes.plot(dots, [place] * len(dots), "o", color=style.ink, ms=2.5)
    style.label_ends(axes, ends, bars.labels, size=_NUMBERS)
    axes.set_xlim(0, 1.25 * max(*ends, 1e-9))


def draw_loss_curves(
    style: FigureStyle,
    axes: Axes,
    curves: Mapping[str, Sequence[float]],
    colors: Sequence[str],
    *,
    base: str,
) -> None:
    """Draw loss curves of a bench by step, from 1 on, on one axis: they lie on each other.

    The curve of `base` is broad, for the others to lie on it; those have their markers at steps of
    their own, or around the markers that are there.
    """
    others = [case for case in curves if case != base]
    for number, (case, losses) in enumerate(curves.items()):
        steps = range(1, len(losses) + 1)
        if case == base:
            (line,) = axes.plot(steps, losses, color=style.ink, label=case, lw=6, alpha=0.3)
            line.set_solid_capstyle("round")
            continue
        around, first = divmod(others.index(case), len(losses))
        axes.plot(
            steps,
            losses,
            color=colors[number],
            label=case,
            lw=0.8,
            marker=style.marker(number + number // len(COLORS)),
            ms=5 + 5 * around,
            markerfacecolor="none" if around else None,
            markevery=(first, max(1, len(others))),
        )
    axes.locator_params(axis="x", integer=True)


def _panels(rows: Sequence[CaseRow]) -> list[tuple[str, str, Bars]]:
    """Return the title, the unit and the bars of each panel."""
    sender = "node" if any(row.link_bytes for row in rows) else "rank"
    links = [_scaled(row.link_bytes or row.payload_bytes, 1e-6) for row in rows]
    peaks = [_scaled(row.peak_bytes, 1e-6) for row in rows]
    idle = [_scaled(row.idle_s, 1e3) for row in rows]
    steps = [row.median_s * 1e3 for row in rows]
    spread = [(row.low_s * 1e3, row.high_s * 1e3) for row in rows]
    speeds = [row.samples_per_s for row in rows]
    bubbles = [None if row.bubble is None else 100 * row.bubble for row in rows]
    theory = [None if row.bubble_theory is None else 100 * row.bubble_theory for row in rows]
    both = [
        "|".join(f"{number:.0f}" for number in pair if number is not None) or NOTHING
        for pair in zip(bubbles, theory, strict=True)
    ]
    return [
        (
            "a step of all ranks",
            "ms: median, quartiles",
            Bars(values=steps, labels=_write(steps), spread=spread),
        ),
        ("throughput", "samples/s", Bars(values=speeds, labels=_write(speeds))),
        ("peak memory (a dot: a rank)", "MB beyond its start, largest rank", _of_ranks(peaks)),
        (
            f"bytes sent (a dot: a {sender})",
            f"MB per step, busiest {sender}",
            _of_ranks(links, "{:.3g}"),
        ),
        (
            "bubble (a line: by theory)",
            "% of the ranks' time, measured|theory",
            Bars(values=bubbles, labels=both, ticks=theory),
        ),
        ("idle time (a dot: a rank)", "ms per step, idlest rank", _of_ranks(idle)),
    ]


def _of_ranks(values: Sequence[Sequence[float] | None], form: str = "{:.0f}") -> Bars:
    """Return a bar for the largest of each case's ranks, and a dot for each."""
    largest = [None if each is None else max(each) for each in values]
    return Bars(values=largest, labels=_write(largest, form), dots=values)


def _write(values: Sequence[float | None], form: str = "{:.0f}") -> list[str]:
    return [format_known(form, value) for value in values]


def _scaled(values: Sequence[float] | None, factor: float) -> list[float] | None:
    return None if values is None else [value * factor for value in values]
