"""`drumline bench scaling` in a terminal, a row for each count of each series, and its figure.

time     │ speed-up │ efficiency     strong: a line for each strategy, with 95 % intervals,
─────────┼──────────┼───────────     what would be ideal, and the law that was fitted
time     │ speed-up │ efficiency     weak
─────────┴────┬─────┴───────────
strong ledger │ weak ledger          a bar for each case: what its step is made of
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.model_parallel.display import milliseconds
from drumline.bench.scaling.laws import LAWS
from drumline.bench.scaling.rows import ScalingFit, ScalingRow
from drumline.bench.scaling.run import ScalingResult, percent
from drumline.core.formatting import counted
from drumline.report.intervals import Interval
from drumline.report.plots import LEDGER, FigureStyle, middles
from drumline.report.tables import NOTHING, FittingColumn, FittingTable, format_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLES = {
    "strong": "strong scaling: all ranks together have the same batch",
    "weak": "weak scaling: each rank has the same batch",
}
_FAR = 10
"""an interval that reaches further says only that nothing is known"""
_PARTS = {
    "needed": ("compute, as the smallest count needs it", LEDGER["compute"]),
    "more": ("compute that takes longer", "#d9825b"),
    "data": ("data", LEDGER["data"]),
    "wait": ("wait for other ranks", LEDGER["wait"]),
    "transfer": ("transfer", LEDGER["transfer"]),
    "other": ("uneven ends of steps", LEDGER["other"]),
}
_LINES_IN, _BAR_IN, _FRAME_IN = 3.0, 0.27, 1.1
"""heights in inches"""
_SMALL = 8  # font size of the labels behind bars
_SHADE = "0.93"
_DODGE = 0.02
"""of the axis: lines of several strategies stand beside each other"""


def scaling_table(rows: Sequence[ScalingRow], *, smallest: str) -> RenderableType:
    """Show `bench scaling`'s rows by mode, and its columns' meaning; `smallest`: the base."""
    parts: list[RenderableType] = []
    for mode in dict.fromkeys(row.mode for row in rows):
        own = [row for row in rows if row.mode == mode]
        parts += [Text(_TITLES[mode], style="bold"), _table(once_each(own)), Text("")]
    return Group(*parts, Text(_legend(smallest)))


def once_each(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """Return `bench scaling`'s rows of one mode, those that strategies share only once."""
    return list({row.case: row for row in rows}.values())


def _table(rows: Sequence[ScalingRow]) -> FittingTable[ScalingRow]:
    def strategy(row: ScalingRow) -> str:
        return row.case.removeprefix(row.mode).split("×")[0].strip()

    columns: list[FittingColumn[ScalingRow]] = [
        FittingColumn("strategy", strategy, justify="left"),
        FittingColumn("nodes", lambda row: str(row.nodes), drop_order=4),
        FittingColumn("ranks", lambda row: str(row.ranks)),
        FittingColumn("batch", lambda row: str(row.batch), drop_order=1),
        FittingColumn("ms", lambda row: milliseconds(row.median_s)),
        FittingColumn("±", lambda row: _wide(row.median_s, row.high_s), drop_order=6),
        FittingColumn("speed-up", lambda row: format_known("{:.2f}×", row.speedup)),
        FittingColumn("±", lambda row: _wide(row.speedup, row.speedup_high), drop_order=7),
        FittingColumn("eff.", lambda row: _share(row.efficiency)),
        FittingColumn("lost", lambda row: _share(row.lost), drop_order=5),
        FittingColumn("compute", lambda row: _share(row.lost_compute), drop_order=5),
        FittingColumn("wait", lambda row: _share(row.lost_wait), drop_order=5),
        FittingColumn("transfer", lambda row: _share(row.lost_transfer), drop_order=5),
        FittingColumn("data", lambda row: _share(row.lost_data), drop_order=3),
    ]
    if len({row.nodes for row in rows}) == 1:
        columns = [column for column in columns if column.name != "nodes"]
    return FittingTable(rows=rows, columns=columns, gap=1, elsewhere="--json, --csv")


def _legend(smallest: str) -> str:
    return (
        "ms: a step of all ranks, median over rounds. eff.: speed-up per rank.\n"
        f"speed-up: over {smallest} in the same round, by samples per second.\n"
        "±: how far the 95 % interval reaches, by Student's t over rounds.\n"
        f"lost: share of the ranks' time beyond that of {smallest} for the same work:\n"
        "in compute that takes longer, waiting for ranks, transfer, fetching data."
    )


def _wide(middle: float | None, high: float | None) -> str:
    """Write how far an interval reaches; down it is as far, by the logarithm."""
    if middle is None or high is None or high == middle:
        return NOTHING
    return f"{high / middle - 1:.0%}" if high < _FAR * middle else f">{_FAR}×"


def _share(share: float | None) -> str:
    return format_known("{:.0%}", share).replace("-0%", "0%").replace("-", "−")


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One quantity against the count."""

    title: str
    unit: str
    values: Callable[[ScalingRow], tuple[float | None, float | None, float | None]]
    """the median of a row, and its interval's ends"""
    scale: float
    with_laws: bool = False
    ideal: Callable[[float, float], float]
    """what it would be by so many times as many ranks, given what it is at the smallest count"""

    def intervals(self, rows: Sequence[ScalingRow]) -> list[Interval]:
        """Return the medians with their intervals, of the rows that have one."""
        found = map(self.values, rows)
        return [Interval(middle=m, low=low, high=high) for m, low, high in found if m is not None]


def draw_scaling_study(style: FigureStyle, result: ScalingResult) -> Figure:
    """Draw `bench scaling`'s figure: what more ranks gain, and where the rest went."""
    rows = result.rows
    modes = list(dict.fromkeys(row.mode for row in rows))
    bars = {mode: once_each([row for row in rows if row.mode == mode]) for mode in modes}
    ledger_in = _FRAME_IN + _BAR_IN * max(map(len, bars.values()))
    heights = [*([_LINES_IN] * len(modes)), ledger_in]
    figure = style.figure(width=11, height=sum(heights) + 0.9)
    grid = figure.add_gridspec(len(modes) + 1, 6, height_ratios=heights)
    for line, mode in enumerate(modes):
        for place, panel in enumerate(_panels(mode, bars[mode][0])):
            axes = figure.add_subplot(grid[line, 2 * place : 2 * place + 2])
            _draw_lines(style, axes, panel, result, mode)
        wide = 6 // len(modes)
        ledger = figure.add_subplot(grid[-1, wide * line : wide * (line + 1)])
        _draw_ledger(style, ledger, bars[mode], mode)
    trained = f"{result.spec.model.name} on {result.spec.data.name}"
    rounds = counted(rows[0].rounds, "round")
    title = f"{trained}: median of {rounds}, 95 % intervals by Student's t"
    style.legend(figure, figure.axes[0], columns=6, title=title)
    style.legend(figure, ledger, columns=4, loc="outside lower center")
    return figure


def _panels(mode: str, first: ScalingRow) -> list[_Panel]:
    strong = mode == "strong"
    each = f"batch {first.batch / first.ranks:g} on each rank"
    whose = f"batch {first.batch} in all" if strong else each
    return [
        _Panel(
            title=f"{mode}: time ({whose})",
            unit="ms per step, until the slowest rank is done",
            values=lambda row: (row.median_s, row.low_s, row.high_s),
            scale=1e3,
            ideal=lambda times, smallest: smallest / times if strong else smallest,
        ),
        _Panel(
            title=f"{mode}: speed-up",
            unit="times" if strong else "times, at as many times the work",
            with_laws=True,
            values=lambda row: (row.speedup, row.speedup_low, row.speedup_high),
            scale=1,
            ideal=lambda times, _: times,
        ),
        _Panel(
            title=f"{mode}: efficiency",
            unit="% of the ideal",
            values=lambda row: (row.efficiency, row.efficiency_low, row.efficiency_high),
            scale=100,
            ideal=lambda _, __: 100,
        ),
    ]


def _draw_lines(
    style: FigureStyle, axes: Axes, panel: _Panel, result: ScalingResult, mode: str
) -> None:
    """Draw a line for each strategy, beside the ideal; counts that crowd the cores are shaded."""
    own = [row for row in result.rows if row.mode == mode]
    varies = "nodes" if len({row.nodes for row in own}) > 1 else "workers"
    counts = sorted({getattr(row, varies) for row in own})
    kinds = list(dict.fromkeys(row.kind for row in own))
    room = (counts[-1] - counts[0]) or 1
    fine = [counts[0] + (counts[-1] - counts[0]) * part / 60 for part in range(61)]
    top = _draw_ideal(style, axes, panel, own, fine)
    for number, kind in enumerate(kinds):
        line = [row for row in own if row.kind == kind and panel.values(row)[0] is not None]
        shift = (number - (len(kinds) - 1) / 2) * _DODGE * room
        across, values = [getattr(row, varies) + shift for row in line], panel.intervals(line)
        look: dict[str, Any] = {"markersize": 5, "linewidth": 1.2, "capsize": 3, "label": kind}
        style.points(axes, across, values, number=number, scale=panel.scale, **look)
        top = max(top, *middles(values, panel.scale), 0.0)
    if panel.with_laws:
        fits = [fit for fit in result.fits if fit.mode == mode and fit.share >= 0]
        _draw_laws(style, axes, fits, fine, kinds)
    _shade(axes, own, varies, room)
    axes.set_ylim(0, 1.3 * (top or 1))
    axes.set_xlim(counts[0] - 0.08 * room, counts[-1] + 0.08 * room)
    axes.set_xticks(counts)
    style.finish(axes, title=panel.title, x=varies, y=panel.unit, legend=False)


def _draw_ideal(
    style: FigureStyle, axes: Axes, panel: _Panel, rows: Sequence[ScalingRow], fine: Sequence[float]
) -> float:
    """Draw what nothing lost would look like, for each smallest count; returns how high it is."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    cases = once_each([row for row in rows if row.times == 1])
    top = 0.0
    for number, row in enumerate(cases):
        (first,) = middles(panel.intervals([row]), panel.scale)
        ideal = [panel.ideal(count / fine[0], first) for count in fine]
        color = style.ink if len(cases) == 1 else style.color(kinds.index(row.kind))
        label = None if number else "ideal"
        axes.plot(fine, ideal, ":", color=color, linewidth=1, label=label)
        top = max(top, *ideal)
    return top


def _draw_laws(
    style: FigureStyle,
    axes: Axes,
    fits: Sequence[ScalingFit],
    fine: Sequence[float],
    kinds: Sequence[str],
) -> None:
    drawn = []
    for fit in fits:
        _, say = LAWS[fit.law]
        speedups = [say(fit.share, count / fine[0]) for count in fine]
        color, label = style.color(kinds.index(fit.kind)), f"{fit.kind}: {percent(fit.share)}"
        drawn += axes.plot(fine, speedups, "--", color=color, linewidth=0.9, label=label)
    if drawn:
        title = f"serial share, by {fits[0].law}"
        axes.legend(handles=drawn, title=title, fontsize=7, title_fontsize=7, loc="upper left")


def _shade(axes: Axes, rows: Sequence[ScalingRow], varies: str, room: float) -> None:
    crowded = [getattr(row, varies) for row in rows if row.crowded]
    free = [getattr(row, varies) for row in rows if not row.crowded]
    if crowded:
        start = (max(free) + min(crowded)) / 2 if free else min(crowded) - room
        label = "more threads than cores"
        axes.axvspan(start, max(crowded) + room, color=_SHADE, zorder=0, label=label)


def _draw_ledger(style: FigureStyle, axes: Axes, rows: Sequence[ScalingRow], mode: str) -> None:
    """Draw a bar for each case: the parts of a step, means over ranks, steps and rounds."""
    ends = [0.0] * len(rows)
    for part, (name, color) in _PARTS.items():
        widths = [_parts(row)[part] * 1e3 for row in rows]
        axes.barh(range(len(rows)), widths, 0.72, left=ends, color=color, label=name)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    marked, labels = None, []
    for place, (row, end) in enumerate(zip(rows, ends, strict=True)):
        lost = ""
        if row.lost is not None and row.times > 1:
            lost = f", {percent(row.lost)} lost"
            share = end * (1 - row.lost)
            label = "" if marked else "a step, if nothing were lost"
            marked = axes.vlines(share, place - 0.45, place + 0.45, color=style.ink, label=label)
        labels.append(f"{end:.3g} ms{lost}")
    style.label_ends(axes, ends, labels, size=_SMALL)
    axes.set_xlim(0, 1.45 * max(ends))
    axes.set_yticks(range(len(rows)), [row.case.removeprefix(mode).strip() for row in rows])
    axes.invert_yaxis()
    title, x = f"{mode}: what a step is made of", "ms per step, mean over ranks, steps and rounds"
    style.finish(axes, title=title, x=x, y="", legend=False)
    axes.grid(visible=False, axis="y")


def _parts(row: ScalingRow) -> dict[str, float]:
    """Cut compute into what the smallest count needs for the same work, and what is longer."""
    rest = {part: getattr(row, f"{part}_s") for part in ("data", "wait", "transfer", "other")}
    more = max(0.0, (row.lost_compute or 0.0) * (row.compute_s + sum(rest.values())))
    return {"needed": row.compute_s - more, "more": more, **rest}
