"""Figures of the benches, as PNG and SVG. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.core.errors import RunDirError
from drumline.report.bench_tables import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Mapping[str, Any]
MARKERS = "os^Dv<>P*X"
_STACK = {"compute": "#8fbf8f", "wait": "#e6b422", "transfer": "#b05fa8"}


def draw_collectives(path: Path, rows: Sequence[Values]) -> list[Path]:
    """Draw time over size, both logarithmic, a line for each rival; returns the files written."""
    figure, (axes,) = _figure(1, height=4.8)
    lines: dict[tuple[Any, ...], list[Values]] = {}
    several = len({row["ranks"] for row in rows}) > 1
    for row in rows:
        lines.setdefault((row["algorithm"], row["backend"], row["ranks"]), []).append(row)
    for number, ((algorithm, backend, ranks), own) in enumerate(lines.items()):
        sizes, times = [row["asked_size"] for row in own], [row["median_s"] * 1e3 for row in own]
        spread = [
            [(row["median_s"] - row["low_s"]) * 1e3 for row in own],
            [(row["high_s"] - row["median_s"]) * 1e3 for row in own],
        ]
        label = f"{algorithm} on {backend}" + (f", {ranks} ranks" if several else "")
        marker = MARKERS[number % len(MARKERS)]
        axes.errorbar(
            sizes, times, yerr=spread, marker=marker, markersize=5, capsize=2, label=label
        )
    sizes = sorted({row["asked_size"] for row in rows})
    if min(sizes) > 0:
        axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("size")
    axes.set_ylabel("time of the slowest rank (ms): median, quartiles")
    first = rows[0]
    where = f" on {first['nodes']} nodes" if first["nodes"] > 1 else ""
    counts = " and ".join(str(count) for count in sorted({row["ranks"] for row in rows}))
    axes.set_title(f"{first['collective']}, {counts} ranks{where}")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    return save_figure(figure, path)


def draw_aggregation(path: Path, rows: Sequence[Values]) -> list[Path]:
    """Draw a panel for each situation: per strategy a bar for each rank, of what its step is."""
    situations = list(dict.fromkeys(row["situation"] for row in rows))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    ranks = sorted({row["rank"] for row in rows})
    figure, panels = _figure(len(situations), height=1.2 + 2.6 * len(situations))
    for axes, situation in zip(panels, situations, strict=True):
        width = 0.8 / len(ranks)
        for number, rank in enumerate(ranks):
            own = {row["kind"]: row for row in rows if _is(row, situation, rank)}
            places = [k + (number - (len(ranks) - 1) / 2) * width for k in range(len(kinds))]
            bottom = [0.0] * len(kinds)
            for part, color in _STACK.items():
                heights = [own[kind][f"{part}_ms"] for kind in kinds]
                label = part if number == 0 else None
                axes.bar(places, heights, width * 0.9, bottom=bottom, color=color, label=label)
                bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.set_title(situation, fontsize=10)
        axes.set_ylabel("ms per step")
        axes.set_xticks(range(len(kinds)), kinds, rotation=20, fontsize=8)
        axes.grid(visible=True, axis="y", alpha=0.3)
    title = f"a bar for each rank, {ranks[0]} … {ranks[-1]}"
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, title=title)
    return save_figure(figure, path)


def _is(row: Values, situation: str, rank: int) -> bool:
    return bool(row["situation"] == situation and row["rank"] == rank)


def empty_figure(*, width: float, height: float) -> Figure:
    """Make a figure of so many inches, without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _figure(panels: int, *, height: float) -> tuple[Figure, list[Axes]]:
    figure = empty_figure(width=8, height=height)
    grid = figure.subplots(panels, squeeze=False)
    return figure, [row[0] for row in grid]


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write the picture twice: pixels for pages, lines for print."""
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    try:
        for file in files:
            figure.savefig(file, dpi=150)
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}") from None
    return files
