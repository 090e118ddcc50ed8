"""What optimizers cost: ours beside torch's, the parts of a step, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from drumline.core.rundir import Event
from drumline.labs import repeats
from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.optimizers.convergence import WIDTHS, runs_of
from drumline.labs.optimizers.experiments import CHUNK, OPTIMIZERS, WHOLE
from drumline.labs.plots import Plot, Style
from drumline.labs.repeats import CurveRow, Runs
from drumline.report.intervals import Interval, compare, extremes, quartile_interval
from drumline.report.ledger.accounts import NS, warm_steps
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.plots import LEDGER, error_bars, middles
from drumline.report.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPIES = {"gd": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""tensors as large as the weights that an optimizer keeps from step to step"""
_FLOAT = 4
_MB = 1e-6


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """Ours and torch's, in pairs of one seed."""

    optimizer: str
    repeats: Annotated[int, form.plain]
    largest: Annotated[float, form.tiny]
    """difference of losses of any step"""
    same: Annotated[int, form.plain]
    """pairs that ended with the same weights to the last bit"""
    step_ratio: Annotated[Interval | None, form.times]
    update_ratio: Annotated[Interval | None, form.times]


def write_engines(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on our optimizers beside torch's: same curve, cost of a step."""
    ours, theirs = runs_of(results), runs_of(results, engine="torch")
    rows = list(_engines(ours, theirs))
    if not rows:
        return
    engines = chapter.tabulate("engines", EngineRow, rows)
    tables = []
    for name, runs in (("torch_curves", theirs), ("our_curves", ours)):
        own = {row.optimizer: runs[row.optimizer] for row in rows}
        tables.append(repeats.tabulate_curves(chapter, name, own, key="optimizer", width=WIDTHS))
    chapter.picture("engines", draw_engines, *tables[::-1], engines)
    chapter.show(engines, "optimizer", "largest", "same", "repeats", "step_ratio", "update_ratio")
    for row in rows:
        exact = row.largest == 0 and row.same == row.repeats
        same = chapter.write("exact" if exact else "apart", row=row)
        if row.step_ratio is None:
            chapter.note("same", row=row, same=same)
        else:
            verdict = chapter.write(f"pace.{compare(row.step_ratio, 1)}")
            chapter.note("step", row=row, same=same, verdict=verdict)


def draw_engines(
    plot: Plot,
    ours: Table[CurveRow],
    theirs: Table[CurveRow],
    engines: Table[EngineRow],
) -> Figure:
    """Draw lab 1's figure of our optimizers' curves over torch's, and the ratios of times."""
    figure, (losses, ratios) = plot.panels(2, height=3.3)
    for row in engines.records:
        number, name = OPTIMIZERS.index(row.optimizer), plot.name("optimizer", row.optimizer)
        mine, other = ours.where(key=row.optimizer), theirs.where(key=row.optimizer)
        plot.band(losses, mine, "step", "loss", number=number, label=f"{name}, drumline")
        every = other[:: max(1, len(other) // 12)]
        steps, values = [point.step for point in every], [point.loss for point in every]
        style: Style = {"linestyle": "", "markersize": 4.5, "markerfacecolor": "none"}
        label = f"{name}, torch"
        plot.points(losses, steps, values, number=number, bars=False, label=label, **style)
    _draw_ratios(plot, ratios, engines.records)
    plot.panel(losses, "losses", legend=False, log="xy")
    plot.legend(figure, losses, columns=4)
    return figure


def _draw_ratios(plot: Plot, axes: Axes, rows: Sequence[EngineRow]) -> None:
    axes.axhline(1, color=plot.ink, linewidth=0.8, linestyle="--")
    kinds = {"step": [row.step_ratio for row in rows], "update": [row.update_ratio for row in rows]}
    shown = [1.0]
    for side, (kind, ratios) in enumerate(kinds.items()):
        places = [n + (side - 0.5) * 0.36 for n, ratio in enumerate(ratios) if ratio is not None]
        known = [ratio for ratio in ratios if ratio is not None]
        color = plot.color(4 if side == 0 else 6)
        style: Style = {"color": color, "ecolor": plot.ink, "capsize": 3}
        bars, label = error_bars(known), plot.label(kind)
        axes.bar(places, middles(known), width=0.34, yerr=bars, label=label, **style)
        shown += middles(known)
    axes.set_ylim(0, 2 * max(shown))  # intervals of a noisy machine may reach far
    names = [plot.name("optimizer", row.optimizer).replace(" ", "\n", 1) for row in rows]
    axes.set_xticks(range(len(names)), names)
    plot.panel(axes, "ratios")


def _engines(ours: Runs, theirs: Runs) -> Iterator[EngineRow]:
    for optimizer, records in ours.items():
        pairs = repeats.pairs_of_seeds(records, theirs.get(optimizer, []))
        if pairs:
            yield EngineRow(
                optimizer=optimizer,
                repeats=len(pairs),
                largest=max(repeats.largest_difference(one, two) for one, two in pairs),
                same=sum(_same_weights(*pair) for pair in pairs),
                step_ratio=repeats.ratio_of(pairs, lambda record: record.median_step_s),
                update_ratio=repeats.ratio_of(pairs, _median_update),
            )


def _same_weights(one: RunRecord, two: RunRecord) -> bool:
    mine: str | None = one.summary.get("weights_sha256")
    return mine is not None and mine == two.summary.get("weights_sha256")


def _median_update(record: RunRecord) -> float | None:
    """Return the seconds that moving the weights takes in a warm step."""
    steps = [ranks[0] for ranks in warm_steps(record.events)]
    found = [event["update"] for event in steps if "update" in event]  # older runs lack it
    return statistics.median(found) * NS if found else None


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A step of an optimizer, or of GD with all samples at once; medians, of memory the mean."""

    optimizer: str
    samples: Annotated[int | None, form.count]
    step_ms: Annotated[Interval | None, form.milliseconds]
    data_ms: Annotated[float | None, form.milliseconds]
    compute_ms: Annotated[float | None, form.milliseconds]
    communication_ms: Annotated[float | None, form.milliseconds]
    update_ms: Annotated[float | None, form.milliseconds]
    peak_bytes: Annotated[Interval | None, form.size]
    state_bytes: Annotated[int | None, form.size]

    def share(self, part_ms: float | None) -> float:
        """Return the share of a step that one of its parts takes."""
        return 0.0 if part_ms is None or self.step_ms is None else part_ms / self.step_ms.middle


def write_profile(chapter: Chapter, results: Results) -> None:
    """Write lab 1's chapter on where each optimizer's step spends its time and memory."""
    runs = runs_of(results)
    if not runs:
        return
    whole = results.record(WHOLE)
    cases = {**runs, **({WHOLE: [whole]} if whole is not None and whole.curve else {})}
    parts = [_profile(case, records) for case, records in cases.items()]
    profile = chapter.tabulate("profile", ProfileRow, parts)
    chapter.picture("profile", draw_profile, profile, chunk=CHUNK)
    columns = ("samples", "step_ms", "update_ms", "peak_bytes", "state_bytes")
    chapter.show(profile, "optimizer", *columns)
    rows = [row for row in profile.records if row.optimizer != WHOLE]
    cheap, dear = extremes(rows, lambda row: row.update_ms)
    if cheap is not None and dear is not None:
        over, share = repeats.ratio(dear.update_ms, cheap.update_ms), dear.share(dear.update_ms)
        chapter.note("update", dear=dear, cheap=cheap, ratio=over, share=share)
    shares = [(row.share(row.communication_ms), row) for row in rows if row.communication_ms]
    if shares:  # what the ranks of several nodes pay for averaging their gradients
        low, least = min(shares, key=lambda pair: pair[0])
        high, most = max(shares, key=lambda pair: pair[0])
        chapter.note("communication", least=least, most=most, least_share=low, most_share=high)
    for row in rows:
        if row.state_bytes and COPIES[row.optimizer] == 1:
            chapter.note("state.one", row=row)
        elif row.state_bytes:
            chapter.note("state.more", row=row, copies=COPIES[row.optimizer])
    gd, at_once = profile.first(optimizer="gd"), profile.first(optimizer=WHOLE)
    if gd is None or at_once is None or gd.peak_bytes is None or at_once.peak_bytes is None:
        return
    for pair in repeats.pairs_of_seeds(runs["gd"], cases[WHOLE]):  # one: the first seed
        gap = repeats.largest_difference(*pair)
        key = "whole.rounding" if gap < repeats.ROUNDING else "whole.more"
        memory = at_once.peak_bytes.middle / gd.peak_bytes.middle
        chapter.note(key, whole=at_once, chunks=gd, ratio=memory, gap=gap)


def draw_profile(plot: Plot, profile: Table[ProfileRow]) -> Figure:
    """Draw lab 1's figure of the time of a thousand samples by parts, and of peak memory."""
    figure, (time, memory) = plot.panels(2, height=3.3)
    rows = [row for row in profile.records if row.update_ms is not None and row.samples]
    _draw_parts(plot, time, rows)
    known = [row for row in rows if row.peak_bytes is not None]
    places, peaks = range(len(known)), [row.peak_bytes for row in known]
    bars, heights = error_bars(peaks, _MB), middles(peaks, _MB)
    style: Style = {"ecolor": plot.ink, "capsize": 3, "label": plot.label("peak")}
    memory.bar(places, heights, yerr=bars, color=plot.color(0), **style)
    states = [(row.state_bytes or 0) * _MB for row in known]
    style = {"facecolor": "none", "edgecolor": plot.ink, "hatch": "///", "linewidth": 0.6}
    memory.bar(places, states, label=plot.label("state"), **style)
    for axes, shown in ((time, rows), (memory, known)):
        axes.set_xticks(range(len(shown)), [_case_name(plot, row.optimizer) for row in shown])
    plot.panel(time, "time")
    plot.panel(memory, "memory")
    return figure


def _draw_parts(plot: Plot, axes: Axes, rows: Sequence[ProfileRow]) -> None:
    shares = {
        part: [1000 * (getattr(row, f"{part}_ms") or 0.0) / (row.samples or 1) for row in rows]
        for part in ("compute", "communication", "update", "data")
    }
    if not any(shares["communication"]):
        del shares["communication"]
    colors = {"communication": LEDGER["wait"], "update": LEDGER["transfer"]}
    plot.stacked(axes, shares, colors=colors)


def _case_name(plot: Plot, case: str) -> str:
    if case == WHOLE:
        return plot.label("whole")
    return plot.name("optimizer", case).replace(" ", "\n", 1)


def _profile(case: str, records: Sequence[RunRecord]) -> ProfileRow:
    steps = [ranks for record in records for ranks in warm_steps(record.events)]
    totals = [1000 * took for record in records for took in record.step_s]
    parameters = records[0].summary.get("parameters")
    return ProfileRow(
        optimizer=case,
        samples=sum(event["samples"] for event in steps[0]) if steps else None,
        step_ms=quartile_interval(totals) if totals else None,
        **_parts([ranks[0] for ranks in steps]),
        peak_bytes=repeats.mean_of(float(max(one.peak_bytes)) for one in records if one.peak_bytes),
        state_bytes=None if parameters is None else COPIES.get(case, 0) * _FLOAT * parameters,
    )


def _parts(steps: Sequence[Event]) -> dict[str, float | None]:
    """Return the medians of the parts of a rank's steps, in milliseconds.

    Communication is what nothing hid; one rank alone has none.
    """
    if not steps or "update" not in steps[0]:  # older runs lack it
        return dict.fromkeys(("data_ms", "compute_ms", "communication_ms", "update_ms"))
    found: dict[str, list[int]] = {"data": [], "communication": [], "update": [], "compute": []}
    for event in steps:
        exposed = sum(until - since for since, until in event["blocked"])
        parts = event["data"], exposed, event["update"]
        for values, part in zip(found.values(), (*parts, event["total"] - sum(parts)), strict=True):
            values.append(part)
    return {f"{part}_ms": 1000 * NS * statistics.median(took) for part, took in found.items()}
