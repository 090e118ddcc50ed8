"""What an optimizer costs: the time of a step and its parts, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from drumline.core.events import Event
from drumline.labs.chapter import Chapter
from drumline.labs.columns import mean_cells
from drumline.labs.curves import largest_difference
from drumline.labs.forms import tiny
from drumline.labs.optimizers.cases import CHUNK, WHOLE, Plan
from drumline.labs.optimizers.descent import runs_of
from drumline.labs.optimizers.names import optimizer_column, optimizer_name
from drumline.labs.optimizers.pictures import draw_profile
from drumline.labs.results import Results
from drumline.report.interval import interval_cells, interval_names, quartile_interval
from drumline.report.ledger import NS, warm_steps
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, milliseconds, percent, size, times
from drumline.report.page.translator import Text, Translator
from drumline.report.record import RunRecord

COPIES = {"gd": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""tensors as large as the weights that an optimizer keeps from step to step"""
_FLOAT = 4
_ROUNDING = 1e-3
"""losses nearer than this, over a whole run, differ by rounding"""
PARTS = ("data", "compute", "communication", "update")


def write_profile(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where no run came to its end."""
    runs = runs_of(results, of)
    whole = results.record(WHOLE)
    cases = {**runs, **({WHOLE: [whole]} if whole is not None and whole.curve else {})}
    if not runs:
        return None
    table = _sheet(cases)
    chapter = Chapter(heading=say.pick("Time and memory", "时间与内存"), tables=[table])
    chapter.results = [
        Picture(
            name="profile",
            title=say.pick("Where time goes, and what memory it takes", "时间去向与内存占用"),
            draw=lambda pen: draw_profile(pen, table),
            caption=say(
                "Left: time for a thousand samples, by parts of a step (medians; data: until the "
                "first batch is there). Right: peak of memory beyond what the process started "
                "with, mean over seeds with 95 % intervals; hatched: what the optimizer keeps from "
                "step to step, computed. “whole”: GD with all samples at once instead of "
                "chunks of {chunk}.",
                "左：每一千个样本的用时，按一步的各部分（中位数；数据：到第一批就绪为止）。"
                "右：进程启动后新增内存的峰值，"
                "为种子间平均值与 95 % 置信区间；斜线部分为优化器跨步保存的状态（计算得出）。"
                "“整批”：GD 一次计算全部样本，而不是每块 {chunk} 个。",
                chunk=CHUNK,
            ),
            tables=[table],
        ),
        TableBlock(
            table=table,
            title=say.pick(
                "A step: median (quartiles over all steps and seeds); memory: mean over seeds "
                "(95 % interval)",
                "每步用时：中位数（全部步与种子的四分位数）；内存：种子间平均值（95 % 置信区间）",
            ),
            columns=[
                optimizer_column(say, **{WHOLE: say.pick("GD, whole", "GD，整批")}),
                Column(key="samples", name=say.pick("samples/step", "每步样本"), form=count),
                Column(key="step_ms", name=say.pick("step", "每步用时"), form=milliseconds),
                Column(key="update_ms", name=say.pick("update", "参数更新"), form=milliseconds),
                Column(key="peak_bytes", name=say.pick("peak memory", "内存峰值"), form=size),
                Column(key="state_bytes", name=say.pick("its state", "优化器状态"), form=size),
            ],
        ),
    ]
    chapter.said = [
        *_about_update(table, say, found),
        *_about_nodes(table, say, found),
        *_about_state(table, say),
        *_about_whole(table, runs.get("gd"), whole, say, found),
    ]
    return chapter


def _sheet(cases: dict[str, list[RunRecord]]) -> Table:
    table = Table(
        name="profile",
        columns=(
            *("optimizer", "samples", *interval_names("step_ms")),
            *(f"{part}_ms" for part in PARTS),
            *(*interval_names("peak_bytes"), "state_bytes"),
        ),
    )
    for case, records in cases.items():
        steps = [ranks for record in records for ranks in warm_steps(record.events)]
        totals = [1000 * took for record in records for took in record.step_s]
        peaks = [float(max(record.peak_bytes)) for record in records if record.peak_bytes]
        parameters = records[0].summary.get("parameters")
        table.add(
            optimizer=case,
            samples=sum(event["samples"] for event in steps[0]) if steps else None,
            **interval_cells("step_ms", quartile_interval(totals) if totals else None),
            **_parts([ranks[0] for ranks in steps]),
            **mean_cells("peak_bytes", peaks),
            state_bytes=None if parameters is None else COPIES.get(case, 0) * _FLOAT * parameters,
        )
    return table


def _parts(steps: Sequence[Event]) -> dict[str, float | None]:
    """Return the medians of the parts of a rank's steps, in milliseconds.

    Communication is what nothing hid; one rank alone has none.
    """
    if not steps or "update" not in steps[0]:  # older runs lack it
        return {f"{part}_ms": None for part in PARTS}
    values = {
        "data": [event["data"] for event in steps],
        "communication": [
            sum(until - since for since, until in event["blocked"]) for event in steps
        ],
        "update": [event["update"] for event in steps],
    }
    values["compute"] = [
        event["total"] - sum(parts) for event, *parts in zip(steps, *values.values(), strict=True)
    ]
    return {f"{part}_ms": 1000 * NS * statistics.median(found) for part, found in values.items()}


def _about_update(table: Table, say: Translator, found: Findings) -> list[Text]:
    """Compare the updates, the one part of a step in which optimizers differ."""
    rows = [row for row in table.rows if row["optimizer"] != WHOLE and row["update_ms"] is not None]
    if len(rows) < 2:
        return []
    dear = max(rows, key=lambda row: row["update_ms"])
    cheap = min(rows, key=lambda row: row["update_ms"])
    return [
        say(
            "By medians, the update itself took longest with {dear}: {dear_ms}, {ratio} that of "
            "{cheap} ({cheap_ms}); of a step of {dear} it is {share}.",
            "按中位数，参数更新本身以 {dear} 最慢：{dear_ms}，是 {cheap}（{cheap_ms}）的 {ratio}；"
            "占 {dear} 一步的 {share}。",
            dear=optimizer_name(say, dear["optimizer"]),
            cheap=optimizer_name(say, cheap["optimizer"]),
            dear_ms=table.cell("update_ms", milliseconds, optimizer=dear["optimizer"]),
            cheap_ms=table.cell("update_ms", milliseconds, optimizer=cheap["optimizer"]),
            ratio=found.cell(
                f"update of {dear['optimizer']} over {cheap['optimizer']}",
                dear["update_ms"] / cheap["update_ms"],
                times,
                of="profile: update_ms",
            ),
            share=found.cell(
                f"share of the update in a step of {dear['optimizer']}",
                dear["update_ms"] / dear["step_ms"],
                percent,
                of="profile: update_ms, step_ms",
            ),
        )
    ]


def _about_nodes(table: Table, say: Translator, found: Findings) -> list[Text]:
    """Tell what the ranks of several nodes pay for averaging their gradients."""
    shares = {
        row["optimizer"]: row["communication_ms"] / row["step_ms"]
        for row in table.rows
        if row["optimizer"] != WHOLE and row["communication_ms"]
    }
    if not shares:
        return []
    low, high = min(shares, key=lambda one: shares[one]), max(shares, key=lambda one: shares[one])
    refs = {
        hole: found.cell(
            f"share of communication in a step of {optimizer}",
            shares[optimizer],
            percent,
            of="profile: communication_ms, step_ms",
        )
        for hole, optimizer in (("low", low), ("high", high))
    }
    return [
        say(
            "Between nodes, averaging the gradients took {low} ({a}) to {high} ({b}) of a step, by "
            "medians, beyond what compute hid.",
            "节点之间，梯度平均占一步的 {low}（{a}）至 {high}（{b}）："
            "按中位数，不含被计算掩盖的部分。",
            a=optimizer_name(say, low),
            b=optimizer_name(say, high),
            **refs,
        )
    ]


def _about_state(table: Table, say: Translator) -> list[Text]:
    keeps = [row for row in table.rows if row["state_bytes"]]
    return [
        say(
            "{name} keeps {state} from step to step: {copies} numbers for each weight.",
            "{name} 在步与步之间保存 {state}：每个权重 {copies} 个数。",
            name=optimizer_name(say, row["optimizer"]),
            state=table.cell("state_bytes", size, optimizer=row["optimizer"]),
            copies=COPIES[row["optimizer"]],
        )
        if COPIES[row["optimizer"]] > 1
        else say(
            "{name} keeps {state} from step to step: one number for each weight.",
            "{name} 在步与步之间保存 {state}：每个权重一个数。",
            name=optimizer_name(say, row["optimizer"]),
            state=table.cell("state_bytes", size, optimizer=row["optimizer"]),
        )
        for row in keeps
    ]


def _about_whole(
    table: Table,
    chunked: list[RunRecord] | None,
    whole: RunRecord | None,
    say: Translator,
    found: Findings,
) -> list[Text]:
    """Tell what computing the full batch at once costs, and whether it changes anything."""
    pair = [one for one in chunked or [] if whole and one.words["seed"] == whole.words["seed"]]
    if not pair or whole is None or not whole.curve:
        return []
    gap = largest_difference(pair[0], whole)
    rows = {row["optimizer"]: row for row in table.rows}
    one, other = rows["gd"]["peak_bytes"], rows[WHOLE]["peak_bytes"]
    if not one or other is None:
        return []
    holes = {
        "ratio": found.cell(
            "memory of GD at once over chunks", other / one, times, of="profile: peak_bytes"
        ),
        "gap": found.cell(
            "largest difference of losses, GD at once against chunks",
            gap,
            tiny,
            of=f"runs {pair[0].name} and {WHOLE}",
        ),
        "whole": table.cell("peak_bytes", size, optimizer=WHOLE),
        "chunks": table.cell("peak_bytes", size, optimizer="gd"),
    }
    start = (
        "GD with all samples at once took {whole} of memory against {chunks} in chunks, {ratio} as "
        "much; the losses differ by {gap} at most",
        "GD 一次计算全部样本需要 {whole} 内存，分块计算为 {chunks}，前者是后者的 {ratio}；"
        "损失最多相差 {gap}",
    )
    end = (
        (
            ": chunks change what must be held, not what is computed.",
            "：分块只改变需要保存的内容，不改变计算结果。",
        )
        if gap < _ROUNDING
        else (", which is more than rounding.", "，超出舍入误差。")
    )
    return [say(start[0] + end[0], start[1] + end[1], **holes)]
