"""Ours beside torch's: the same curve, and what a step of each costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from drumline.labs.chapter import Chapter
from drumline.labs.curves import curve_sheet, largest_difference
from drumline.labs.forms import tiny
from drumline.labs.judgement import compare_sizes
from drumline.labs.optimizers.cases import Plan
from drumline.labs.optimizers.descent import WIDTHS, Runs, runs_of
from drumline.labs.optimizers.names import optimizer_column, optimizer_name
from drumline.labs.optimizers.pictures import draw_engines
from drumline.labs.results import Results
from drumline.report.interval import Interval, interval_cells, interval_names, read_interval
from drumline.report.ledger import NS, warm_steps
from drumline.report.order import Order, compare
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, plain, times
from drumline.report.page.translator import Text, Translator
from drumline.report.record import RunRecord


def write_engines(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where there is no pair of runs."""
    ours, theirs = runs_of(results, of), runs_of(results, of, engine="torch")
    table = _sheet(ours, theirs)
    if not table.rows:
        return None
    compared = [row["optimizer"] for row in table.rows]
    curves = curve_sheet(
        "torch_curves", "optimizer", {name: theirs[name] for name in compared}, width=WIDTHS
    )
    mine = curve_sheet(
        "our_curves", "optimizer", {name: ours[name] for name in compared}, width=WIDTHS
    )
    chapter = Chapter(
        heading=say.pick("Ours beside torch's", "drumline 与 torch 实现的对照"),
        tables=[table, curves, mine],
    )
    chapter.results = [
        Picture(
            name="engines",
            title=say.pick("Ours beside torch.optim", "drumline 与 torch.optim"),
            draw=lambda pen: draw_engines(pen, mine, curves, table),
            caption=say.pick(
                "Left: ours as lines, torch's as markers. Right: time of ours over torch's, of a "
                "whole step and of the update alone, median steps of the same seed; bars are 95 % "
                "intervals over seeds.",
                "左：曲线为 drumline 的实现，标记为 torch 的实现。"
                "右：两者的用时之比（整步与仅参数更新），取同一种子的中位数；"
                "误差线为种子间的 95 % 置信区间。",
            ),
            tables=[mine, curves, table],
        ),
        TableBlock(
            table=table,
            title=say.pick(
                "Largest difference of the losses of any step and seed; seeds that ended with the "
                "same weights to the last bit; time of ours ÷ torch's (95 % interval over seeds)",
                "任意一步、任意种子的最大损失差；最终权重逐位相同的种子数；"
                "用时之比，drumline ÷ torch（种子间 95 % 置信区间）",
            ),
            columns=[
                optimizer_column(say),
                Column(key="largest", name=say.pick("largest difference", "最大差"), form=tiny),
                Column(key="same", name=say.pick("same weights", "权重相同"), form=plain),
                Column(key="repeats", name=say.pick("seeds", "种子数"), form=plain),
                Column(key="step_ratio", name=say.pick("step", "整步"), form=times),
                Column(key="update_ratio", name=say.pick("update", "参数更新"), form=times),
            ],
        ),
    ]
    chapter.said = [_about(table, row["optimizer"], say) for row in table.rows]
    return chapter


def _sheet(ours: Runs, theirs: Runs) -> Table:
    table = Table(
        name="engines",
        columns=(
            *("optimizer", "repeats", "largest", "same"),
            *interval_names("step_ratio", "update_ratio"),
        ),
    )
    for optimizer, records in ours.items():
        by_seed = {record.words.get("seed"): record for record in theirs.get(optimizer, [])}
        pairs = [
            (record, by_seed[seed])
            for record in records
            if (seed := record.words.get("seed")) in by_seed
        ]
        if pairs:
            table.add(
                optimizer=optimizer,
                repeats=len(pairs),
                largest=max(largest_difference(one, two) for one, two in pairs),
                same=sum(_weights(one) == _weights(two) is not None for one, two in pairs),
                **interval_cells("step_ratio", _ratio(pairs, median_step)),
                **interval_cells("update_ratio", _ratio(pairs, median_update)),
            )
    return table


def _weights(record: RunRecord) -> str | None:
    return record.summary.get("weights_sha256")


def median_step(record: RunRecord) -> float | None:
    """Return the seconds of a warm step."""
    return record.median_step_s


def median_update(record: RunRecord) -> float | None:
    """Return the seconds that moving the weights takes in a warm step."""
    steps = [ranks[0] for ranks in warm_steps(record.events)]
    found = [event["update"] for event in steps if "update" in event]  # older runs lack it
    return statistics.median(found) * NS if found else None


def _ratio(
    pairs: list[tuple[RunRecord, RunRecord]], measure: Callable[[RunRecord], float | None]
) -> Interval | None:
    known = [(a, b) for a, b in ((measure(one), measure(two)) for one, two in pairs) if a and b]
    if not known:
        return None
    return compare_sizes([a for a, _ in known], [b for _, b in known])


def _about(table: Table, optimizer: str, say: Translator) -> Text:
    row = table.rows[table.find(optimizer=optimizer)]
    exact = row["largest"] == 0 and row["same"] == row["repeats"]
    same = (
        say(
            "ours and torch's gave the same loss in every step, and the same weights to the last "
            "bit (seeds: {repeats})",
            "drumline 与 torch 每一步的损失都相同，全部 {repeats} 个种子的最终权重逐位一致",
            repeats=table.cell("repeats", plain, optimizer=optimizer),
        )
        if exact
        else say(
            "the losses of ours and torch's never differed by more than {largest}",
            "drumline 与 torch 的损失相差从未超过 {largest}",
            largest=table.cell("largest", tiny, optimizer=optimizer),
        )
    )
    if row["step_ratio"] is None:
        return say(
            "{name}: {same}.", "{name}：{same}。", name=optimizer_name(say, optimizer), same=same
        )
    verdict = {
        Order.MORE: ("slower", "更慢"),
        Order.LESS: ("faster", "更快"),
        Order.LEVEL: ("the same within the interval", "在置信区间内没有区别"),
        Order.ONCE: ("measured once", "只测量了一次"),
    }[compare(read_interval(row, "step_ratio"), 1)]
    return say(
        "{name}: {same}. A step of ours took {step} the time of torch's (" + verdict[0] + "), the "
        "update alone {update}.",
        "{name}：{same}。drumline 每步用时是 torch 的 {step}（"
        + verdict[1]
        + "），仅参数更新为 {update}。",
        name=optimizer_name(say, optimizer),
        same=same,
        step=table.cell("step_ratio", times, optimizer=optimizer),
        update=table.cell("update_ratio", times, optimizer=optimizer),
    )
