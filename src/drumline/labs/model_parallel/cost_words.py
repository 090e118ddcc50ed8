"""What lab 4's numbers say about bubbles, memory, bytes and losses, and what the trace shows."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.labs.forms import tiny
from drumline.labs.model_parallel.judging import Row, list_quotes
from drumline.labs.model_parallel.sheets import ALONE, TRACED, ModelParallelSheets
from drumline.report.page.findings import Findings
from drumline.report.page.table import CellRef, Form, milliseconds, percent, size, times
from drumline.report.page.translator import Sentence, Translator

AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""
_NEAR = 0.03
"""a measured bubble this close to the formula's is as the formula says"""
_NEVER = 0.01


def say_costs(
    tables: ModelParallelSheets, findings: Findings, say: Translator, *, nodes: int
) -> Iterator[Sentence]:
    """Say everything but what is about time."""
    yield from _bubbles(tables, findings, say)
    yield from _together(tables, say)
    yield from _idle(tables, say)
    yield from _memory(tables, findings, say)
    yield from _bytes(tables, findings, say, nodes=nodes)
    yield from say_losses(tables, say)
    yield from _weights(tables, say)


def _bubbles(
    tables: ModelParallelSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    rows = [row for row in tables.forms.rows if row["bubble"] is not None]
    shown = [row for row in rows if row["case"] in TRACED or row["schedule"] == "interleaved"]
    if not shown:
        return

    def pair(row: Row) -> Sentence:
        return say(
            "{measured} ({theory})",
            "{measured}（{theory}）",
            measured=tables.forms.cell("bubble", percent, case=row["case"]),
            theory=tables.forms.cell("bubble_theory", percent, case=row["case"]),
        )

    yield say(
        "The bubble, measured and in brackets by (p−1)/(m+p−1), with v·m instead of m where a rank "
        "has v chunks: {list}.",
        "气泡的实测值，括号内为按 (p−1)/(m+p−1) 算出的理论值"
        "（每个进程有 v 个模型块时，m 换为 v·m）：{list}。",
        list=list_quotes(say, [(row["case"], pair(row)) for row in shown]),
    )
    far = max(rows, key=lambda row: abs(row["bubble"] - row["bubble_theory"]))
    gap = far["bubble"] - far["bubble_theory"]
    ref = findings.cell(
        f"bubble of {far['case']} beyond the formula",
        gap,
        _points(say),
        of="forms.csv: bubble, bubble_theory",
    )
    if abs(gap) < _NEAR:
        yield say(
            "All are close to the formula; {case} is farthest, by {gap}.",
            "都接近理论值；偏离最大的是 {case}，偏差为 {gap}。",
            gap=ref,
            case=far["case"],
        )
    else:
        yield say(
            "{case} is farthest from it, by {gap}: the formula takes all pieces as equally long "
            "and messages as free, which real ones are not.",
            "{case} 偏离理论值最大，偏差为 {gap}：公式假设每一块用时相同、消息不占时间，"
            "实际并非如此。",
            gap=ref,
            case=far["case"],
        )


def _points(say: Translator) -> Form:
    unit = say.pick("points", "个百分点")
    return lambda value: f"{100 * value:+.1f} {unit}"


def _together(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    """What the trace shows: parts in turn, or at once."""
    rows = [row for row in tables.forms.rows if row["together"] is not None]
    turn = next((row for row in rows if row["case"] == TRACED[0]), None)
    if turn is not None:
        ref = tables.forms.cell("together", percent, case=turn["case"])
        if turn["together"] < _NEVER:
            yield say(
                "The trace of {case} shows the parts at work in turn: two of them computed at once "
                "in {share} of a step (quartiles of the steps in brackets).",
                "{case} 的时间线显示各部分轮流工作：两个部分同时计算的时间占一步的 {share}"
                "（括号内为各步的四分位数）。",
                case=turn["case"],
                share=ref,
            )
        else:
            yield say(
                "In the trace of {case}, two parts computed at once in {share} of a step "
                "(quartiles of the steps in brackets), although nothing lets them overlap.",
                "{case} 的时间线中，两个部分同时计算的时间占一步的 {share}"
                "（括号内为各步的四分位数），尽管没有任何安排使它们重叠。",
                case=turn["case"],
                share=ref,
            )
    others = [row for row in rows if row["case"] in TRACED[1:]]
    if others:
        items = [
            (row["case"], tables.forms.cell("together", percent, case=row["case"]))
            for row in others
        ]
        yield say(
            "With microbatches two parts or more computed at once in this share of a step: {list}.",
            "有微批次时，两个或更多部分同时计算的时间占一步的比例：{list}。",
            list=list_quotes(say, items),
        )


def _idle(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    rows = [row for row in tables.ranks.rows if row["idle_ms"] is not None]
    if len(rows) > 1:
        most, least = (pick(rows, key=lambda row: row["idle_ms"]) for pick in (max, min))
        yield say(
            "The idlest rank of all was rank {rank} of {case}: {idle} of a step it did nothing but "
            "wait and transfer; the busiest, rank {other} of {form}, {less}.",
            "最空闲的是 {case} 的进程 {rank}：每步有 {idle} 只在等待和传输；"
            "最忙的是 {form} 的进程 {other}，为 {less}。",
            rank=str(most["rank"]),
            case=most["case"],
            idle=tables.ranks.cell("idle_ms", milliseconds, **_key(most)),
            other=str(least["rank"]),
            form=least["case"],
            less=tables.ranks.cell("idle_ms", milliseconds, **_key(least)),
        )


def _key(row: Row) -> dict[str, object]:
    return {"case": row["case"], "rank": row["rank"]}


def _memory(tables: ModelParallelSheets, findings: Findings, say: Translator) -> Iterator[Sentence]:
    alone = tables.baseline.rows[0]["peak_bytes"] if tables.baseline.rows else None
    rows = [row for row in tables.forms.rows if row["form"] != "alone" and row["peak_bytes"]]
    if not alone or len(rows) < 2:
        return
    rows.sort(key=lambda row: row["peak_bytes"])
    least, most = rows[0], rows[-1]
    holes = {
        "alone": tables.baseline.cell_at(0, "peak_bytes", size),
        "least": least["case"],
        "low": _ratio(findings, "memory", least, least["peak_bytes"] / alone),
        "most": most["case"],
        "high": _ratio(findings, "memory", most, most["peak_bytes"] / alone),
    }
    if most["peak_bytes"] <= alone:
        yield say(
            "One process alone held {alone} at its peak; the largest rank of every other form held "
            "less, from {low} of it ({least}) to {high} ({most}).",
            "单进程的内存峰值为 {alone}；其他每种形式中占用最多的进程也都低于它，"
            "为其 {low}（{least}）到 {high}（{most}）。",
            **holes,
        )
    else:
        yield say(
            "One process alone held {alone} at its peak; the largest rank of the other forms held "
            "from {low} of it ({least}) to {high} ({most}): a part of the model is not always a "
            "part of the memory.",
            "单进程的内存峰值为 {alone}；其他形式中占用最多的进程为其 {low}（{least}）到 "
            "{high}（{most}）：模型的一部分并不总是只占一部分内存。",
            **holes,
        )


def _ratio(findings: Findings, what: str, row: Row, value: float) -> CellRef:
    return findings.cell(
        f"{what} of {row['case']} over alone",
        value,
        times,
        of="forms.csv, baseline.csv: peak_bytes",
    )


def _bytes(
    tables: ModelParallelSheets, findings: Findings, say: Translator, *, nodes: int
) -> Iterator[Sentence]:
    rows = {row["case"]: row for row in tables.forms.rows if row["sent_bytes"]}
    data = rows.get("data")
    if data is None:
        return
    items = []
    for name in (*TRACED, "pipeline interleaved ×4", "tensor"):
        if name in rows:
            ref = findings.cell(
                f"bytes of {name} over data parallelism",
                rows[name]["sent_bytes"] / data["sent_bytes"],
                times,
                of="forms.csv: sent_bytes",
            )
            items.append((name, ref))
    if items:
        how = (
            ("left the nodes by their links", "经由链路离开各节点")
            if nodes > 1
            else ("were handed to other ranks", "交给其他进程")
        )
        yield say(
            "By data parallelism {bytes} {how} in a step, by the other forms this many times as "
            "much: {list}.",
            "数据并行每步有 {bytes} {how}，其他形式与它之比：{list}。",
            bytes=tables.forms.cell("sent_bytes", size, case="data"),
            how=say.pick(*how),
            list=list_quotes(say, items),
        )


def say_losses(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    """Whether all forms computed the same."""
    rows = [
        row
        for row in tables.forms.rows
        if row["form"] != "alone" and row["loss_difference"] is not None
    ]
    if not rows:
        return
    worst = max(rows, key=lambda row: row["loss_difference"])
    apart = tables.forms.cell("loss_difference", tiny, case=worst["case"])
    if worst["loss_difference"] == 0:
        yield say(
            "The losses of all forms are the same bits as those of one process alone, in every "
            "step (largest difference: {apart}).",
            "各种形式在每一步的损失都与单进程逐位相同（最大差：{apart}）。",
            apart=apart,
        )
    elif worst["loss_difference"] < AGREE:
        yield say(
            "All forms train the same model: no loss of any step differs from that of one process "
            "alone by more than {apart} ({case}), which is rounding.",
            "各种形式训练的是同一个模型：任何一步的损失与单进程相差不超过 {apart}（{case}），"
            "属于舍入误差。",
            apart=apart,
            case=worst["case"],
        )
    else:
        yield say(
            "The losses do not agree: {case} differs from one process alone by {apart} in some "
            "step, which is more than rounding.",
            "损失不一致：{case} 在某一步与单进程相差 {apart}，超出舍入误差。",
            apart=apart,
            case=worst["case"],
        )


def _weights(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    """Which forms ended with the very bits of one process: they add up in the same order."""
    rows = {row["case"]: row for row in tables.forms.rows if row["weights"]}
    alone = rows.get(ALONE)
    if alone is None:
        return
    others = [row for row in rows.values() if row["form"] != "alone"]
    same = [row["case"] for row in others if row["weights"] == alone["weights"]]
    if same:
        yield say(
            "{list} ended with the same weights as one process alone, bit by bit.",
            "{list} 结束时的权重与单进程逐位相同。",
            list=say.join(same),
        )
    elif others:
        yield say(
            "No form ended with the very bits of one process's weights: sums were added up in "
            "another order.",
            "没有一种形式结束时的权重与单进程逐位相同：求和的次序不同。",
        )
