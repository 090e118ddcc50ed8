"""Who saw what: coverage, overlap and labels of each way of partitioning the data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel.experiments import KINDS, label_groups, plan
from drumline.labs.experiment import Results
from drumline.labs.plots import Plot
from drumline.report.page.blocks import Facts
from drumline.report.page.table import Table, percent, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Coverage = Mapping[str, Any]
"""`coverage.json` of a run, or one of its parts"""
Coverages = Mapping[str, Coverage]
"""by kind of partition"""
SPANS = ("first_epoch", "run")
_LUCK = 2.0
"""labels that differ by less than so many times what chance alone does are called mixed"""
_ROOM = 8
"""ranks whose numbers can be read in one of the small panels"""


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """What a partition gives to the ranks."""

    kind: str
    seen_first_epoch: Annotated[float, percent]
    seen_run: Annotated[float, percent]
    overlap_first_epoch: Annotated[float | None, percent]
    overlap_run: Annotated[float | None, percent]
    repeats: Annotated[float, percent]
    """draws of a sample that the rank had in the epoch already"""
    label_skew: Annotated[float, percent]
    largest_part: Annotated[float, times]
    """against the mean"""


@dataclass(frozen=True, kw_only=True)
class LabelRow:
    """How often a rank drew a label over the run."""

    kind: str
    rank: int
    label: int
    draws: int
    share: float


@dataclass(frozen=True, kw_only=True)
class OverlapRow:
    """The distinct samples of a rank that another one saw, too."""

    kind: str
    span: str
    rank: int
    other: int
    common: int
    share: float


def write_partitions(chapter: Chapter, results: Results) -> None:
    """Write lab 3's chapter on which rank saw which samples, by partition."""
    found = {kind: results.record(f"{kind}-1") for kind in KINDS}
    covered = {
        kind: record.coverage
        for kind, record in found.items()
        if record is not None and record.coverage is not None
    }
    if not covered:
        return
    rows = [_part(kind, coverage) for kind, coverage in covered.items()]
    parts = chapter.tabulate("parts", PartRow, rows)
    labels = chapter.tabulate("labels", LabelRow, _labels(covered))
    overlaps = chapter.tabulate("overlaps", OverlapRow, _overlaps(covered))
    owned = label_groups(plan(results.settings).ranks)
    groups = " / ".join("".join(map(str, labels)) for labels in owned)
    name, text = chapter.text.name, chapter.text.text
    meanings = [(name("kind", k), text(f"meanings.{k}").format(groups=groups)) for k in KINDS]
    chapter.results.append(Facts(items=meanings))
    chapter.picture("labels", draw_labels, labels, parts)
    chapter.picture("overlap", draw_overlap, overlaps)
    seen = ("seen_first_epoch", "seen_run", "repeats", "overlap_first_epoch", "overlap_run")
    chapter.show(parts, "kind", *seen, "label_skew", "largest_part")
    for row in parts.where(kind="sampling"):
        draws = sum(rank["draws"] for rank in covered[row.kind]["first_epoch"]["ranks"])
        expected = 1 - math.exp(-draws / covered[row.kind]["samples"])  # drawn with replacement
        chapter.note("sampling", row=row, expected=expected)
    _describe_disjoint(chapter, rows)
    _describe_labels(chapter, rows, covered)


def draw_labels(plot: Plot, labels: Table[LabelRow], parts: Table[PartRow]) -> Figure:
    """Draw lab 3's figure of the labels that each rank drew, a panel per partition; coverage."""
    kinds = [row.kind for row in parts.records]
    figure, panels = plot.panels(len(kinds) + 1, columns=3, height=3.0)
    top = max(row.share for row in labels.records)
    for number, (kind, axes) in enumerate(zip(kinds, panels, strict=False)):
        rows = labels.where(kind=kind)
        digits, ranks = sorted({row.label for row in rows}), sorted({row.rank for row in rows})
        shares = {(row.label, row.rank): row.share for row in rows}
        matrix = [[shares[digit, rank] for rank in ranks] for digit in digits]
        plot.heat(axes, matrix, write=_in_percent, top=top)
        axes.set_xticks(ranks[:: _stride(ranks, 10)])
        axes.set_yticks(range(len(digits)), [str(digit) for digit in digits])
        _name(plot, axes, kind, x=plot.label("rank"))
        if number % 3 == 0:
            axes.set_ylabel(plot.label("digit"))
    _draw_coverage(plot, panels[-1], parts.records)
    return figure


def _draw_coverage(plot: Plot, axes: Axes, parts: Sequence[PartRow]) -> None:
    matrix = [[row.seen_first_epoch, row.seen_run] for row in parts]
    plot.heat(axes, matrix, write=_in_percent, top=1.0, color=1)
    axes.set_xticks([0, 1], [plot.name("span", "first_epoch"), plot.name("span", "run")])
    names = [plot.name("kind", row.kind).replace("（", " （") for row in parts]
    lines = [name.replace(" ", "\n", 1) for name in names]
    axes.set_yticks(range(len(names)), lines, fontsize=7)
    axes.set_title(plot.label("seen"), fontsize=9)


def draw_overlap(plot: Plot, overlaps: Table[OverlapRow]) -> Figure:
    """Draw lab 3's heat maps of the samples that ranks share: an epoch above, the run below."""
    kinds = list(overlaps.groups("kind"))
    ranks = list(overlaps.groups("rank"))
    crowded = len(ranks) > _ROOM
    write: Callable[[float], str] = (lambda _: "") if crowded else _in_percent
    figure, panels = plot.panels(2 * len(kinds), columns=len(kinds), height=2.0)
    for place, axes in enumerate(panels):
        below, column = divmod(place, len(kinds))
        kind, span = kinds[column], ("first_epoch", "run")[below]
        rows = overlaps.where(kind=kind, span=span)
        shares = {(row.rank, row.other): row.share for row in rows}
        matrix = [[shares[rank, other] for other in ranks] for rank in ranks]
        plot.heat(axes, matrix, write=write, top=1.0, color=2)
        axes.set_aspect("equal")
        axes.set_xticks(ranks[:: _stride(ranks, 6)])
        axes.set_yticks(ranks[:: _stride(ranks, 6)])
        if below == 0:
            _name(plot, axes, kind, x="")
        else:
            axes.set_xlabel(plot.label("rank"))
        if column == 0:
            axes.set_ylabel(f"{plot.name('span', span)}\n{plot.label('rank')}")
    figure.suptitle(plot.label("crowded" if crowded else "common"), fontsize=9)
    return figure


def _name(plot: Plot, axes: Axes, kind: str, *, x: str) -> None:
    name = plot.name("kind", kind).replace(" (", "\n(").replace("（", "\n（")
    axes.set_title(name, fontsize=9)
    axes.set_xlabel(x)


def _stride(ranks: Sequence[int], room: int) -> int:
    """Return which of the ranks is named, each or every so many, that so many names have room."""
    return -(-len(ranks) // room)


def _in_percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _part(kind: str, coverage: Coverage) -> PartRow:
    first, run = (coverage[span] for span in SPANS)
    draws = [rank["draws"] for rank in first["ranks"]]
    return PartRow(
        kind=kind,
        seen_first_epoch=first["seen_share"],
        seen_run=run["seen_share"],
        overlap_first_epoch=_mean_overlap(first),
        overlap_run=_mean_overlap(run),
        repeats=1 - sum(rank["distinct"] for rank in first["ranks"]) / sum(draws),
        label_skew=_label_skew(run["ranks"]),
        largest_part=max(draws) / statistics.fmean(draws),
    )


def _mean_overlap(table: Coverage) -> float | None:
    """Return the mean over all pairs of the share of one rank's samples that the other has, too."""
    shares = [
        both / table["ranks"][row]["distinct"]
        for row, line in enumerate(table["overlap"])
        for column, both in enumerate(line)
        if row != column and table["ranks"][row]["distinct"]
    ]
    return statistics.fmean(shares) if shares else None


def _label_skew(ranks: Sequence[Coverage]) -> float:
    """Return how far ranks' labels are from those of all, as a mean total variation distance.

    0: every rank has the same mixture; 1 − 1/ranks: no two ranks share a label (equal parts).
    """
    total = sum(rank["draws"] for rank in ranks)
    names = ranks[0]["labels"]
    whole = {name: sum(rank["labels"][name] for rank in ranks) / total for name in names}
    distances = [
        sum(abs(rank["labels"][name] / rank["draws"] - whole[name]) for name in names) / 2
        for rank in ranks
        if rank["draws"]
    ]
    return statistics.fmean(distances)


def _chance_skew(ranks: Sequence[Coverage]) -> float:
    """Return the label skew to be expected of parts that are drawn without regard to labels.

    The share of a label in m samples scatters by √(p(1−p)/m); its mean deviation is √(2/π) of that.
    """
    labels = len(ranks[0]["labels"])
    samples = statistics.fmean(max(1, rank["distinct"]) for rank in ranks)
    share = 1 / labels
    return labels / 2 * math.sqrt(2 / math.pi) * math.sqrt(share * (1 - share) / samples)


def _labels(covered: Coverages) -> Iterator[LabelRow]:
    for kind, coverage in covered.items():
        for rank in coverage["run"]["ranks"]:
            for label, draws in rank["labels"].items():
                share = draws / rank["draws"] if rank["draws"] else 0.0
                where = {"rank": rank["rank"], "label": int(label)}
                yield LabelRow(kind=kind, **where, draws=draws, share=share)


def _overlaps(covered: Coverages) -> Iterator[OverlapRow]:
    for kind, coverage in covered.items():
        for span in SPANS:
            table = coverage[span]
            for rank, line in enumerate(table["overlap"]):
                own = table["ranks"][rank]["distinct"]
                for other, common in enumerate(line):
                    pair = {"rank": rank, "other": other, "common": common}
                    share = common / own if own else 0.0
                    yield OverlapRow(kind=kind, span=span, **pair, share=share)


def _describe_disjoint(chapter: Chapter, rows: Sequence[PartRow]) -> None:
    """Tell which parts stay apart for the whole run, and which only for an epoch."""
    apart = [chapter.text.name("kind", row.kind) for row in rows if not row.overlap_run]
    if apart:
        chapter.note("apart", names=chapter.text.join(apart))
    for row in rows:
        if row.overlap_run and not row.overlap_first_epoch:
            chapter.note("mixing", row=row)


def _describe_labels(chapter: Chapter, rows: Sequence[PartRow], covered: Coverages) -> None:
    """Tell where ranks' labels differ by more than chance makes them."""
    mixed = []
    for row in rows:
        if row.label_skew > _LUCK * _chance_skew(covered[row.kind]["run"]["ranks"]):
            chapter.note("skewed", row=row)
        else:
            mixed.append(chapter.text.name("kind", row.kind))
    if mixed:
        chapter.note("mixed", names=chapter.text.join(mixed))
