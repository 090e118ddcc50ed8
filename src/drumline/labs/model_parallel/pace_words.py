"""What lab 4's numbers say about time: against one process, data parallelism, microbatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drumline.labs.model_parallel.judging import Pace, Row, judge_pace, list_quotes
from drumline.labs.model_parallel.sheets import ALONE, ALONE_AGAIN, ModelParallelSheets
from drumline.report.interval import read_interval
from drumline.report.order import Order, compare
from drumline.report.page.findings import Findings
from drumline.report.page.table import milliseconds, percent, times
from drumline.report.page.translator import Sentence, Translator

_LEVEL = (", which is no difference beyond the spread", "，差别在波动范围之内")
_SPLIT = ("rpc", "pipeline", "tensor")


def say_fastest(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    """Name the ends of the list."""
    rows = sorted(
        (row for row in tables.forms.rows if row["form"] != "alone" and row["speedup"] is not None),
        key=lambda row: row["step_ms"],
    )
    if len(rows) > 1:
        yield say(
            "Of the forms on {ranks} ranks {best} had the shortest step by its median, {step}, "
            "which is {up} the speed of one process alone; {worst} had the longest, {down} that "
            "speed.",
            "在 {ranks} 个进程上的各种形式中，按中位数 {best} 每步最短，为 {step}，"
            "速度是单进程的 {up}；{worst} 每步最长，速度是单进程的 {down}。",
            ranks=str(rows[0]["ranks"]),
            best=rows[0]["case"],
            worst=rows[-1]["case"],
            step=tables.forms.cell("step_ms", milliseconds, case=rows[0]["case"]),
            up=tables.forms.cell("speedup", times, case=rows[0]["case"]),
            down=tables.forms.cell("speedup", times, case=rows[-1]["case"]),
        )


def say_paces(
    tables: ModelParallelSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    """Say everything about time."""
    yield from _against_alone(tables, say)
    yield from _surprises(tables, say)
    yield from _drift(tables, say)
    yield from _against_data(tables, findings, say)
    yield from _microbatches(tables, findings, say)
    yield from _schedules(tables, findings, say)


def _against_alone(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    if not tables.baseline.rows:
        return
    base = tables.baseline.rows[0]
    alone = tables.baseline.cell_at(0, "step_ms", milliseconds)
    groups: dict[Pace, list[Row]] = {pace: [] for pace in Pace}
    for row in tables.forms.rows:
        if row["form"] != "alone":
            groups[judge_pace(row, base)].append(row)
    said = {
        Pace.FASTER: (
            "One process alone took {alone} a step. Faster, with quartiles of the steps that do "
            "not meet: {list}.",
            "单进程每步 {alone}。更快且步的四分位区间不相交的有：{list}。",
        ),
        Pace.SAME: (
            "Neither faster nor slower than one process alone with {alone}, as far as the "
            "quartiles of the steps tell: {list}.",
            "单进程每步 {alone}。四分位区间与之重叠、不能说更快或更慢的有：{list}。",
        ),
        Pace.SLOWER: (
            "Slower than one process alone with {alone}, quartiles of the steps not meeting: "
            "{list}.",
            "单进程每步 {alone}。更慢且步的四分位区间不相交的有：{list}。",
        ),
    }
    for pace, texts in said.items():
        if groups[pace]:
            items = [
                (row["case"], tables.forms.cell("speedup", times, case=row["case"]))
                for row in sorted(groups[pace], key=lambda row: -row["speedup"])
            ]
            yield say(*texts, alone=alone, list=list_quotes(say, items))


def _surprises(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    """Speed that sharing the work out cannot explain."""
    for row in tables.forms.rows:
        if row["speedup"] is None or row["form"] == "alone":
            continue
        speedup = read_interval(row, "speedup")
        holes: dict[str, Any] = {
            "case": row["case"],
            "up": tables.forms.cell("speedup", times, case=row["case"]),
        }
        if compare(speedup, row["ranks"]) is Order.MORE:
            yield say(
                "{case} is {up} as fast as one process, more than {ranks} ranks can be by sharing "
                "the work out: smaller parts may fit the caches better, or the machine had less "
                "time for the process alone.",
                "{case} 的速度为单进程的 {up}，超过 {ranks} 个进程分担计算所能达到的："
                "可能是较小的部分更适合缓存，或单进程运行时机器分给它的时间更少。",
                ranks=str(row["ranks"]),
                **holes,
            )
        elif row["microbatches"] == 1 and compare(speedup, 1) is Order.MORE:
            yield say(
                "{case} is {up} as fast as one process although its parts compute in turn, so that "
                "is not overlap: smaller parts may fit the caches better, their updates run at "
                "once, or the machine had less time for the process alone.",
                "{case} 的速度为单进程的 {up}，尽管其各部分轮流计算，因此并非来自重叠："
                "可能是较小的部分更适合缓存、各部分同时更新参数，或单进程运行时机器分给它的时间更少。",
                **holes,
            )


def _drift(tables: ModelParallelSheets, say: Translator) -> Iterator[Sentence]:
    """What the machine itself did between the first run and the last."""
    rows = _by_case(tables)
    first, last = rows.get(ALONE), rows.get(ALONE_AGAIN)
    if first is None or last is None:
        return
    holes: dict[str, Any] = {
        "first": tables.forms.cell("step_ms", milliseconds, case=ALONE),
        "last": tables.forms.cell("step_ms", milliseconds, case=ALONE_AGAIN),
    }
    if judge_pace(last, first) is Pace.SAME:
        yield say(
            "One process alone ran first and last: {first} and {last} a step. The quartiles "
            "overlap: no change of the machine itself can be told.",
            "单进程在最先和最后各运行一次：每步 {first} 和 {last}。四分位区间重叠，"
            "看不出机器本身有变化。",
            **holes,
        )
        return
    yield say(
        "One process alone ran first and last: {first} and {last} a step. The machine itself "
        "changed by {ratio} meanwhile; speed-ups are against both runs together, and smaller "
        "differences than that say nothing.",
        "单进程在最先和最后各运行一次：每步 {first} 和 {last}。期间机器本身的速度变化了 {ratio}；"
        "加速比以两次运行合计为基准，小于这一变化的差别没有意义。",
        ratio=tables.baseline.cell_at(0, "drift", percent),
        **holes,
    )


def _against_data(
    tables: ModelParallelSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    data = _by_case(tables).get("data")
    split = [row for row in tables.forms.rows if row["form"] in _SPLIT]
    if data is None or not split:
        return
    paces = {row["case"]: judge_pace(row, data, drift=tables.drift) for row in split}
    best = min(split, key=lambda row: row["step_ms"])
    level = [row for row in split if paces[row["case"]] is Pace.SAME]
    if paces[best["case"]] is Pace.SLOWER and level:  # its quartiles are narrower than another's
        best = min(level, key=lambda row: row["step_ms"])
    holes: dict[str, Any] = {
        "data": tables.forms.cell("step_ms", milliseconds, case="data"),
        "best": best["case"],
        "step": tables.forms.cell("step_ms", milliseconds, case=best["case"]),
        "ratio": findings.cell(
            f"step of {best['case']} over data parallelism",
            best["step_ms"] / data["step_ms"],
            times,
            low=best["step_ms_low"] / data["step_ms_high"],
            high=best["step_ms_high"] / data["step_ms_low"],
            of="forms.csv: step_ms",
        ),
    }
    pace = paces[best["case"]]
    if pace is Pace.FASTER:
        yield say(
            "Against data parallelism with {data} a step the fastest split of the model, {best}, "
            "was ahead: {step}, {ratio} as long.",
            "数据并行每步 {data}。与之相比，最快的模型划分 {best} 更快：{step}，用时为其 {ratio}。",
            **holes,
        )
    elif pace is Pace.SLOWER:
        yield say(
            "Data parallelism with {data} a step was faster than every split of the model; the "
            "fastest, {best}, took {step}, {ratio} as long.",
            "数据并行每步 {data}，快于所有模型划分；其中最快的 {best} 用时 {step}，为其 {ratio}。",
            **holes,
        )
    else:
        yield say(
            "Data parallelism took {data} a step and, of the splits of the model, {best} {step}, "
            "{ratio} as long: the quartiles or the machine's own change explain that, so which is "
            "faster cannot be told.",
            "数据并行每步 {data}，模型划分中 {best} 为 {step}，用时为其 {ratio}："
            "差别在四分位区间或机器自身变化之内，不能说谁更快。",
            **holes,
        )


def _microbatches(
    tables: ModelParallelSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    """What microbatches do to RPC: one, and that number which took the shortest step."""
    rows = [row for row in tables.forms.rows if row["form"] == "rpc" and row["bubble"] is not None]
    one = next((row for row in rows if row["microbatches"] == 1), None)
    several = [row for row in rows if row["microbatches"] > 1]
    if one is None or not several:
        return
    best = min(several, key=lambda row: row["step_ms"])
    holes: dict[str, Any] = {
        "count": str(best["microbatches"]),
        "one": tables.forms.cell("step_ms", milliseconds, case=one["case"]),
        "many": tables.forms.cell("step_ms", milliseconds, case=best["case"]),
        "ratio": findings.cell(
            f"step of {best['case']} over {one['case']}",
            best["step_ms"] / one["step_ms"],
            times,
            low=best["step_ms_low"] / one["step_ms_high"],
            high=best["step_ms_high"] / one["step_ms_low"],
            of="forms.csv: step_ms",
        ),
        "before": tables.forms.cell("bubble", percent, case=one["case"]),
        "after": tables.forms.cell("bubble", percent, case=best["case"]),
    }
    pace = judge_pace(best, one, drift=tables.drift)
    if pace is Pace.FASTER:
        yield say(
            "By RPC, microbatches helped: with {count} a step took {many} instead of {one}, "
            "{ratio} as long, and the bubble went from {before} to {after}.",
            "RPC 方式下，微批次有效：{count} 个微批次时每步 {many}，一个时为 {one}，用时为后者的 "
            "{ratio}；气泡从 {before} 变为 {after}。",
            **holes,
        )
    elif pace is Pace.SLOWER:
        yield say(
            "By RPC, microbatches did not pay: at best, with {count}, a step took {many} instead "
            "of {one}, {ratio} as long, though the bubble went from {before} to {after}.",
            "RPC 方式下，微批次得不偿失：最好时（{count} 个）每步 {many}，一个时为 {one}，"
            "用时为后者的 {ratio}，尽管气泡从 {before} 变为 {after}。",
            **holes,
        )
    else:
        yield say(
            "By RPC, {count} microbatches brought the bubble from {before} to {after}; a step took "
            "{many} instead of {one}, {ratio} as long, which the quartiles or the machine's own "
            "change explain.",
            "RPC 方式下，{count} 个微批次使气泡从 {before} 变为 {after}；每步 {many}，一个时为 "
            "{one}，用时为后者的 {ratio}，差别在四分位区间或机器自身变化之内。",
            **holes,
        )


def _schedules(
    tables: ModelParallelSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    """GPipe beside 1F1B, with the same microbatches: time, and memory."""
    rows = {(row["schedule"], row["microbatches"]): row for row in tables.forms.rows}
    counts = [count for schedule, count in rows if schedule == "gpipe"]
    for count in sorted(counts)[-1:]:
        early, late = rows.get(("1f1b", count)), rows[("gpipe", count)]
        if early is None or not early["peak_bytes"] or not late["peak_bytes"]:
            continue
        same = judge_pace(early, late, drift=tables.drift) is Pace.SAME
        yield say(
            "With {count} microbatches 1f1b took {early} a step and gpipe {late}{verdict}. Before "
            "a backward, 1f1b keeps the activations of {kept} microbatches at most and gpipe those "
            "of all {count}; the largest rank of 1f1b held {memory} the memory of gpipe's.",
            "{count} 个微批次时，1f1b 每步 {early}，gpipe 每步 {late}{verdict}。"
            "反向之前，1f1b 最多保存 {kept} 个微批次的激活值，gpipe 保存全部 {count} 个；"
            "内存占用最多的进程，1f1b 为 gpipe 的 {memory}。",
            kept=str(min(count, early["ranks"])),
            count=str(count),
            early=tables.forms.cell("step_ms", milliseconds, case=early["case"]),
            late=tables.forms.cell("step_ms", milliseconds, case=late["case"]),
            verdict=say.pick(*_LEVEL) if same else "",
            memory=findings.cell(
                f"memory of 1f1b over gpipe, {count} microbatches",
                early["peak_bytes"] / late["peak_bytes"],
                times,
                of="forms.csv: peak_bytes",
            ),
        )


def _by_case(tables: ModelParallelSheets) -> dict[str, Row]:
    return {row["case"]: row for row in tables.forms.rows}
