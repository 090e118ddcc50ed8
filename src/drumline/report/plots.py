"""`FigureStyle`: how all figures are drawn, so that they look alike, read well, and suit a page.

A page has them inline as SVG, and beside it as PNG, SVG and PDF files. On the page, ink is a
placeholder that becomes `currentColor`, so that one drawing serves the light and the dark page. In
files it is nearly black, on white.
"""

from __future__ import annotations

import contextlib
import functools
import html
import io
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drumline.core.errors import RunDirError
from drumline.report.intervals import Interval, middle_of
from drumline.report.page.translator import Language

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from drumline.report.page.blocks import Picture

Values = Sequence[Interval | float | None]
PAGE_INK = "#010203"
"""no colour of ours: what has it on the page becomes the text's own"""
FILE_INK = "#1f2328"
COLORS = (
    "#3b7dd8",
    "#e07b39",
    "#2f9e77",
    "#c2517f",
    "#8a6fd1",
    "#b8901f",
    "#4aa3b5",
    "#8b8f97",
    "#a0522d",
    "#6b8e23",
)
"""told apart on white and on black, and by most who see colours differently"""
LEDGER = {
    "data": "#8a6fd1",
    "compute": "#2f9e77",
    "wait": "#d9a21b",
    "transfer": "#c2517f",
    "other": "#8b8f97",
}
MARKERS = "os^Dv<>P*X"
FORMATS = ("png", "svg", "pdf")
_DPI = 160
_REFERENCE = re.compile(r'(\bid="|url\(#|href="#)([^")]+)')
_CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Heiti SC",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
    "AR PL UMing CN",
    "AR PL UKai CN",
    "Droid Sans Fallback",
)
"""families that have the characters, on Linux, macOS and Windows"""
_FILES = ("cjk", "wqy", "sourcehan", "pingfang", "simhei", "msyh", "uming", "ukai", "fallback")
_BETWEEN_ROWS_IN = 0.12
_STYLE = Path(__file__).with_name("figures.mplstyle")
_INKED = (
    *(f"{part}.color" for part in ("text", "xtick", "ytick", "grid")),
    *(f"axes.{part}color" for part in ("edge", "label", "title")),
)
"""settings that are the colour of the ink"""


@functools.cache
def chinese_font() -> str | None:
    """Find a font of this machine that has Chinese characters, for figures.

    matplotlib remembers the fonts that it once found; those that came later are looked for here.
    """
    from matplotlib import font_manager

    fonts = font_manager.fontManager
    if not any(font.name in _CHINESE for font in fonts.ttflist):
        for file in font_manager.findSystemFonts():
            if any(word in Path(file).name.lower() for word in _FILES):
                with contextlib.suppress(OSError, RuntimeError):  # no font that it can read
                    fonts.addfont(file)
    # it says on stderr which weight it takes instead of a missing one
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    known = {font.name for font in fonts.ttflist}
    return next((name for name in _CHINESE if name in known), None)


def middles(values: Iterable[Interval | float | None], scale: float = 1.0) -> list[float]:
    """Return what a figure draws of measured values; nan, which is not drawn, for None."""
    return [math.nan if value is None else scale * middle_of(value) for value in values]


def error_bars(values: Values, scale: float = 1.0) -> list[list[float]] | None:
    """Return intervals as error bars of a figure, down and up; None: all are unknown.

    One that is unknown reaches nowhere: nan, which is not drawn.
    """
    unknown = Interval(middle=math.nan, low=None, high=None)
    ends = [value if isinstance(value, Interval) else unknown for value in values]
    bars = [
        [math.nan if one.low is None else scale * max(one.middle - one.low, 0.0) for one in ends],
        [math.nan if one.high is None else scale * max(one.high - one.middle, 0.0) for one in ends],
    ]
    return None if all(math.isnan(bar) for side in bars for bar in side) else bars


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """Draws in one language, with one ink."""

    lang: Language = Language.EN
    ink: str = FILE_INK

    @property
    def speaks(self) -> Language:
        """The language of the text in figures: Chinese only where a font has it."""
        return self.lang if chinese_font() is not None else Language.EN

    def color(self, number: int) -> str:
        """Return the colour of the n-th of things that are compared."""
        return COLORS[number % len(COLORS)]

    def marker(self, number: int) -> str:
        """Return the marker of the n-th."""
        return MARKERS[number % len(MARKERS)]

    def figure(self, *, width: float = 7.6, height: float = 3.6) -> Figure:
        """Make an empty figure of so many inches, without a window."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0.0 if self.ink == PAGE_INK else 1.0)
        FigureCanvasAgg(figure)
        return figure

    def panels(
        self, count: int, *, columns: int | None = None, height: float = 3.4
    ) -> tuple[Figure, list[Axes]]:
        """Make a figure with so many panels side by side, or in rows of `columns`."""
        across = min(columns or count, count)
        down = -(-count // across)
        figure = self.figure(height=height * down)
        if down > 1:  # a title is not to be read with the label above it
            figure.set_layout_engine("constrained", h_pad=_BETWEEN_ROWS_IN)
        grid = figure.subplots(down, across, squeeze=False)
        axes = [panel for row in grid for panel in row]
        for panel in axes[count:]:
            panel.remove()
        return figure, axes[:count]

    def scale_sizes(self, axes: Axes, sizes: Mapping[int, str], **ticks: Any) -> None:
        """Make a panel of times over sizes logarithmic, with a tick for each size, by its label."""
        from matplotlib.ticker import NullLocator

        if min(sizes) > 0:
            axes.set_xscale("log", base=2)
        axes.set_yscale("log")  # has labels between powers of ten, too, where it spans few
        axes.set_xticks(list(sizes), list(sizes.values()), **ticks)
        axes.xaxis.set_minor_locator(NullLocator())

    def finish(self, axes: Axes, *, title: str, x: str, y: str, legend: bool = True) -> None:
        """Give a panel its title, units, grid and, if there is more than one thing, its legend."""
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(visible=True, alpha=0.25, color=self.ink)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if legend and len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend()

    def legend(
        self,
        figure: Figure,
        axes: Axes,
        *,
        columns: int,
        title: str | None = None,
        loc: Literal["outside upper center", "outside lower center"] = "outside upper center",
    ) -> None:
        """Put a legend of what a panel shows above all panels, or below them."""
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc=loc, ncols=columns, title=title)

    def label_ends(
        self, axes: Axes, ends: Sequence[float], labels: Sequence[str], *, size: float
    ) -> None:
        """Write a label behind the end of each lying bar."""
        look: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        for place, (end, label) in enumerate(zip(ends, labels, strict=True)):
            axes.annotate(label, (end, place), **look, fontsize=size, color=self.ink)

    def points(
        self,
        axes: Axes,
        across: Sequence[float],
        values: Values,
        *,
        number: int,
        scale: float = 1.0,
        bars: bool = True,
        **style: Any,
    ) -> None:
        """Draw values on a line, each with a marker and, if `bars`, the bar of its interval.

        The rest are keyword arguments of matplotlib.
        """
        style = {"color": self.color(number), "marker": self.marker(number), **style}
        if bars:
            style = {"yerr": error_bars(values, scale), "capsize": 2, **style}
        draw = axes.errorbar if bars else axes.plot
        draw(across, middles(values, scale), **style)

    @contextlib.contextmanager
    def drawing(self, **more: Any) -> Iterator[None]:
        """Set sizes, fonts and ink of everything that is drawn inside."""
        import matplotlib.style

        chinese = chinese_font() if self.speaks == "zh" else None
        settings: dict[str, object] = {
            # Chinese fonts lack signs, e.g. the minus of 10⁻¹: they give what the first has not
            "font.family": ["DejaVu Sans", *([chinese] if chinese else [])],
            **dict.fromkeys(_INKED, self.ink),
            **more,
        }
        with matplotlib.style.context([_STYLE, settings]):
            yield


def draw_rank_bars(
    axes: Axes, ranks: Sequence[Sequence[Any]], kinds: Sequence[str], parts: Mapping[str, str]
) -> None:
    """Draw in a figure for each strategy a bar of each rank's step, of parts one on another.

    Each rank has a row for a strategy, with the milliseconds of parts; these have their labels.
    """
    width = 0.8 / len(ranks)
    for number, rows in enumerate(ranks):
        own = {row.kind: row for row in rows}
        places = [k + (number - (len(ranks) - 1) / 2) * width for k in range(len(kinds))]
        foot = [0.0] * len(kinds)
        for part, label in parts.items():
            heights = [getattr(own.get(kind), f"{part}_ms", 0.0) for kind in kinds]
            named = label if number == 0 else None
            axes.bar(places, heights, width * 0.9, bottom=foot, color=LEDGER[part], label=named)
            foot = [low + height for low, height in zip(foot, heights, strict=True)]


def render_inline(picture: Picture, lang: Language) -> str:
    """Draw a figure for a report's page: text stays text, ink is the page's, names are unique."""
    style = FigureStyle(lang=lang, ink=PAGE_INK)
    out = io.StringIO()
    with style.drawing(**{"svg.fonttype": "none"}):
        picture.draw(style).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _REFERENCE.sub(rf"\g<1>{picture.name}-\2", text)
    # the page decides how wide it is
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    label = html.escape(str(picture.title))
    text = text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return text.replace(PAGE_INK, "currentColor")


def write_figure(
    draw: Callable[[FigureStyle], Figure], files: Sequence[Path], lang: Language = Language.EN
) -> list[Path]:
    """Draw a figure to files, whose endings say the format; returns them.

    Raises:
        RunDirError: one cannot be written.
    """
    style = FigureStyle(lang=lang)
    with style.drawing():
        figure = draw(style)
        for file in files:
            dated = {"CreationDate" if file.suffix == ".pdf" else "Date": None}
            try:
                figure.savefig(file, dpi=_DPI, metadata=None if file.suffix == ".png" else dated)
            except OSError as error:
                raise RunDirError(f"cannot write {file}: {error.strerror}") from None
    return list(files)
