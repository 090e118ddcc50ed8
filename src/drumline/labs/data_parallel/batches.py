"""The effect of the global batch: fewer, larger steps over the same samples."""

from __future__ import annotations

from drumline.labs.chapter import Chapter
from drumline.labs.curves import curve_sheet
from drumline.labs.data_parallel.cases import BATCH, LR, Plan, batch_name
from drumline.labs.data_parallel.cost_pictures import draw_batches
from drumline.labs.results import Results
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, milliseconds, percent, plain, points, times
from drumline.report.page.translator import Text, Translator
from drumline.report.record import RunRecord

RULES = ("same", "scaled")
_SMALL = 8
"""steps that a drawn loss of a batch of 128 is the mean of; others so that samples are as many"""
_APART = 0.01
"""accuracies further apart than this are told as different; there is one seed"""


def write_batches(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where fewer than two batches came to their end."""
    runs = {
        (batch, rule): record
        for batch in of.batches
        for rule in RULES
        if (record := results.record(batch_name(batch, rule))) is not None and record.curve
    }
    if len({batch for batch, _ in runs}) < 2:
        return None
    table = _sheet(runs)
    curves = _curves(runs)
    chapter = Chapter(
        heading=say.pick("The effect of the global batch", "全局批量的影响"), tables=[table, curves]
    )
    chapter.results = [
        Picture(
            name="batches",
            title=say.pick(
                "Other global batches over the same samples", "相同样本、不同的全局批量"
            ),
            draw=lambda pen: draw_batches(pen, table, curves),
            caption=say(
                "{ranks} ranks, one seed. “same lr”: {lr} for all; “scaled lr”: in proportion to "
                "the batch. Losses are means over about as many samples for each batch.",
                "{ranks} 个进程，一个种子。“相同学习率”：均为 {lr}；“按比例”：学习率与批量成正比。"
                "各批量的损失按大致相同的样本数取平均。",
                ranks=of.ranks,
                lr=f"{LR:g}",
            ),
            tables=[table, curves],
        ),
        TableBlock(
            table=table,
            title=say.pick(
                "By global batch (one seed); communicating: share of a step in which ranks did "
                "nothing but wait or transfer",
                "按全局批量（一个种子）；通信占比：每步中只在等待或传输的时间",
            ),
            columns=[
                Column(key="batch", name=say.pick("batch", "批量"), form=count),
                Column(
                    key="rule",
                    name=say.pick("learning rate", "学习率规则"),
                    align="left",
                    labels={
                        "same": say.pick("same", "相同"),
                        "scaled": say.pick("scaled", "按比例"),
                    },
                ),
                Column(key="lr", name=say.pick("lr", "学习率"), form=plain),
                Column(key="steps", name=say.pick("steps", "步数"), form=count),
                Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
                Column(key="test_loss", name=say.pick("test loss", "测试损失"), form=plain),
                Column(key="step_ms", name=say.pick("step", "每步用时"), form=milliseconds),
                Column(key="samples_per_s", name=say.pick("samples/s", "样本/秒"), form=count),
                Column(key="comm_share", name=say.pick("communicating", "通信占比"), form=percent),
            ],
        ),
    ]
    chapter.said = [
        *_about_speed(table, say, found),
        *_about_accuracy(table, say),
    ]
    return chapter


def _sheet(runs: dict[tuple[int, str], RunRecord]) -> Table:
    table = Table(
        name="batches",
        columns=(
            *("batch", "rule", "lr", "steps", "accuracy", "test_loss"),
            *("step_ms", "samples_per_s", "comm_share"),
        ),
    )
    for (batch, rule), record in runs.items():
        last = record.curve[-1]
        step = record.median_step_s
        table.add(
            batch=batch,
            rule=rule,
            lr=record.words["optimizer"]["lr"],
            steps=last.step,
            accuracy=record.accuracy,
            test_loss=record.summary.get("test_loss"),
            step_ms=None if step is None else 1000 * step,
            samples_per_s=last.samples / last.seconds if last.seconds else None,
            comm_share=_comm_share(record),
        )
    return table


def _comm_share(record: RunRecord) -> float | None:
    if record.ledger is None:
        return None
    total = sum(rank.total_s for rank in record.ledger.ranks)
    return sum(rank.exposed_s for rank in record.ledger.ranks) / total if total else None


def _curves(runs: dict[tuple[int, str], RunRecord]) -> Table:
    """Put the curves of all batches in one sheet, each smoothed over about as many samples."""
    named = {
        f"{batch} {rule}": [record]
        for (batch, rule), record in runs.items()
        if batch != BATCH or rule == RULES[0]  # there the rules are the same run
    }
    width = {f"{batch} {rule}": max(1, _SMALL * BATCH // batch) for batch, rule in runs}
    return curve_sheet("batch_curves", "run", named, width=width)


def _about_speed(table: Table, say: Translator, found: Findings) -> list[Text]:
    rows = [
        row
        for row in table.rows
        if row["rule"] == RULES[0] and row["samples_per_s"] and row["comm_share"] is not None
    ]
    if len(rows) < 2:
        return []
    small, large = rows[0], rows[-1]
    ratio = large["samples_per_s"] / small["samples_per_s"]
    where = {"small": {"batch": small["batch"]}, "large": {"batch": large["batch"]}}
    why = (
        (
            ", since a step sends the same bytes whatever the batch",
            "：无论批量多大，每步发送的字节数相同",
        )
        if large["comm_share"] < small["comm_share"]
        else ("", "")
    )
    return [
        say(
            "A global batch of {large} got through samples {ratio} as fast as one of {small}; "
            "communication was {large_share} of a step against {small_share}" + why[0] + ".",
            "全局批量 {large} 处理样本的速度是批量 {small} 的 {ratio}；每步通信占比为 "
            "{large_share}，后者为 {small_share}" + why[1] + "。",
            large=table.cell("batch", count, rule=RULES[0], **where["large"]),
            small=table.cell("batch", count, rule=RULES[0], **where["small"]),
            ratio=found.cell(
                f"samples per second, batch {large['batch']} over {small['batch']}",
                ratio,
                times,
                of="batches: samples_per_s",
            ),
            large_share=table.cell("comm_share", percent, rule=RULES[0], **where["large"]),
            small_share=table.cell("comm_share", percent, rule=RULES[0], **where["small"]),
        )
    ]


def _about_accuracy(table: Table, say: Translator) -> list[Text]:
    """Tell what the largest batch lost at equal samples, and what a larger rate gave back."""
    told = [row for row in table.rows if row["accuracy"] is not None]
    large = max(row["batch"] for row in table.rows)
    by_rule = {row["rule"]: row for row in told if row["batch"] == large}
    base = next((row for row in told if row["batch"] == BATCH), None)
    if base is None or RULES[0] not in by_rule or large == BATCH:
        return []
    same = by_rule[RULES[0]]
    gap = same["accuracy"] - base["accuracy"]
    word = (
        ("less", "较低")
        if gap < -_APART
        else ("more", "较高")
        if gap > _APART
        else ("about the same, for one seed", "仅就一个种子而言大致相同")
    )
    said: list[Text] = [
        say(
            "After the same samples a batch of {large} had reached {accuracy} in {steps} steps, a "
            "batch of {small} {other} in {more} steps: " + word[0] + ".",
            "处理相同数量的样本后，批量 {large} 走了 {steps} 步，准确率 {accuracy}；"
            "批量 {small} 走了 {more} 步，准确率 {other}：" + word[1] + "。",
            large=table.cell("batch", count, batch=large, rule=RULES[0]),
            small=table.cell("batch", count, batch=BATCH, rule=base["rule"]),
            steps=table.cell("steps", count, batch=large, rule=RULES[0]),
            more=table.cell("steps", count, batch=BATCH, rule=base["rule"]),
            accuracy=table.cell("accuracy", points, batch=large, rule=RULES[0]),
            other=table.cell("accuracy", points, batch=BATCH, rule=base["rule"]),
        )
    ]
    if RULES[1] in by_rule:
        change = by_rule[RULES[1]]["accuracy"] - same["accuracy"]
        ending = (
            ("which makes up for some of it.", "弥补了一部分差距。")
            if change > _APART and change < -gap
            else ("which is better.", "有所提高。")
            if change > _APART
            else ("which is worse.", "反而更差。")
            if change < -_APART
            else ("which makes little difference here.", "在这里差别不大。")
        )
        said.append(
            say(
                "With a learning rate in proportion to the batch it reached {scaled}, " + ending[0],
                "学习率与批量成正比时，准确率为 {scaled}，" + ending[1],
                scaled=table.cell("accuracy", points, batch=large, rule=RULES[1]),
            )
        )
    return said
