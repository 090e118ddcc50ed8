"""Sentences about data parallelism against the single machine."""

from __future__ import annotations

from drumline.labs.curves import largest_difference
from drumline.labs.data_parallel.cases import CORES
from drumline.labs.forms import point_change, tiny
from drumline.report.interval import read_interval
from drumline.report.order import Order, compare
from drumline.report.page.findings import Findings
from drumline.report.page.table import (
    Table,
    count,
    milliseconds,
    percent,
    plain,
    points,
    seconds,
    times,
)
from drumline.report.page.translator import Filling, Text, Translator
from drumline.report.record import RunRecord

_EQUAL = 1e-3
"""losses nearer than this, over a whole run, differ by rounding"""


def say_scaling(
    setups: dict[str, list[RunRecord]],
    times_of: Table,
    equal: Table,
    say: Translator,
    found: Findings,
) -> list[Text]:
    """Tell what more workers gained, and at what cost."""
    many = [setup for setup in setups if setup not in ("1", CORES)]
    said = [_about_speed(times_of, setup, say) for setup in many]
    said.append(_about_machine(setups, times_of, many, say))
    said.append(_about_cores(times_of, many, say))
    if many:
        said.append(_about_time(times_of, many[-1], say, found))
        said.append(_about_equal_samples(setups, many[-1], say, found))
    said.append(_about_equal_time(equal, say, found))
    return [one for one in said if one is not None]


def _about_speed(times_of: Table, setup: str, say: Translator) -> Text | None:
    row = times_of.rows[times_of.find(setup=setup)]
    if row["speedup"] is None:
        return None
    verdict = {
        Order.MORE: ("faster than one.", "快于单个进程。"),
        Order.LESS: (
            "slower than one: sharing the work out cost more than it saved.",
            "慢于单个进程：分担计算的开销超过了收益。",
        ),
        Order.LEVEL: (
            "within the scatter of seeds it cannot be told from one.",
            "在种子波动范围内与单个进程没有区别。",
        ),
        Order.ONCE: ("measured once.", "只测量了一次。"),
    }[compare(read_interval(row, "speedup"), 1)]
    return say(
        "{workers} workers: speed-up {speedup}, efficiency {efficiency}; " + verdict[0],
        "{workers} 个进程：加速比 {speedup}，效率 {efficiency}；" + verdict[1],
        workers=times_of.cell("workers", plain, setup=setup),
        speedup=times_of.cell("speedup", times, setup=setup),
        efficiency=times_of.cell("efficiency", percent, setup=setup),
    )


def _about_machine(
    setups: dict[str, list[RunRecord]], times_of: Table, many: list[str], say: Translator
) -> Text | None:
    """Tell where there are more workers than cores to run them."""
    cores = setups["1"][0].manifest.get("cpu_count")
    over = [setup for setup in many if isinstance(cores, int) and int(setup) > cores]
    if not over:
        return None
    return say(
        "Cores of the machine: {cores}. {workers} workers take turns on them, so that their "
        "efficiency cannot reach that of as many machines.",
        "本机只有 {cores} 个核心：{workers} 个进程只能轮流使用，效率不可能达到同样数量机器的水平。",
        cores=str(cores),
        workers=say.join(over),
    )


def _about_cores(times_of: Table, many: list[str], say: Translator) -> Text | None:
    """Compare the best number of workers with one process that has all cores."""
    if not many or not any(row["setup"] == CORES for row in times_of.rows):
        return None
    alone = times_of.rows[times_of.find(setup=CORES)]
    best = min(
        (times_of.rows[times_of.find(setup=setup)] for setup in many),
        key=lambda row: row["step_ms"],
    )
    holes = {
        "step": times_of.cell("step_ms", milliseconds, setup=CORES),
        "workers": times_of.cell("workers", plain, setup=best["setup"]),
        "other": times_of.cell("step_ms", milliseconds, setup=best["setup"]),
    }
    start = (
        "One process with all cores took {step} for a step, the best number of workers "
        "({workers}) {other} (medians, quartiles of steps): ",
        "一个进程使用全部核心时每步 {step}，最佳进程数（{workers}）时每步 {other}"
        "（中位数与四分位数）：",
    )
    end = {
        Order.LESS: (
            "processes shared the work better than threads.",
            "多进程比多线程分担得更好。",
        ),
        Order.MORE: (
            "threads shared the work better than processes.",
            "多线程比多进程分担得更好。",
        ),
        Order.LEVEL: ("the quartiles overlap.", "两者的四分位区间重叠。"),
        Order.ONCE: ("one step alone does not tell.", "只有一步，无法判断。"),
    }[compare(read_interval(best, "step_ms"), read_interval(alone, "step_ms"))]
    return say(start[0] + end[0], start[1] + end[1], **holes)


def _about_time(times_of: Table, setup: str, say: Translator, found: Findings) -> Text | None:
    """Tell where a step's time went on the most workers."""
    row = times_of.rows[times_of.find(setup=setup)]
    accounts = ("compute", "wait", "transfer", "data")
    if any(row[f"{account}_ms"] is None for account in accounts):
        return None
    total = sum(row[f"{account}_ms"] for account in accounts)
    shares = {
        account: found.cell(
            f"share of {account} in a step on {setup} workers",
            row[f"{account}_ms"] / total,
            percent,
            of=f"scaling: {account}_ms",
        )
        for account in accounts[:3]
    }
    return say(
        "On {workers} workers {compute} of a step was computing, {wait} waiting for a rank that "
        "came later, {transfer} transfer that nothing hid.",
        "{workers} 个进程时，每步 {compute} 为计算，{wait} 在等待较晚到达的进程，"
        "{transfer} 为未被计算掩盖的传输。",
        workers=times_of.cell("workers", plain, setup=setup),
        **shares,
    )


def _about_equal_samples(
    setups: dict[str, list[RunRecord]], setup: str, say: Translator, found: Findings
) -> Text | None:
    one, many = setups["1"][0], setups[setup][0]
    if one.words.get("seed") != many.words.get("seed") or not one.curve or not many.curve:
        return None
    gap = largest_difference(one, many)
    if one.accuracy is None or many.accuracy is None:
        return None
    change = many.accuracy - one.accuracy
    holes: dict[str, Filling] = {
        "gap": found.cell(
            f"largest difference of losses, 1 against {setup} workers", gap, tiny, of="curves"
        ),
        "change": found.cell(
            f"accuracy on {setup} workers minus 1, one seed",
            change,
            point_change(say),
            of="runs of one seed",
        ),
        "workers": setup,
    }
    if gap < _EQUAL:
        return say(
            "At equal samples {workers} workers do what one does: with shuffle the ranks' batches "
            "together are its batch; no step's loss differed by more than {gap}, and the accuracy "
            "by {change}.",
            "样本数相同时，{workers} 个进程与单个进程的计算相同：全局打乱时各进程的批次合起来就是"
            "单机的批次；任何一步的损失相差不超过 {gap}，准确率的差值为 {change}。",
            **holes,
        )
    start = (
        "At equal samples the losses of {workers} workers and of one differed by up to {gap}, and "
        "the accuracy by {change}: ",
        "样本数相同时，{workers} 个进程与单个进程的损失最多相差 {gap}，准确率的差值为 {change}：",
    )
    end = (
        (
            "they began alike, so that is rounding in another order, magnified by training.",
            "开始时两者相同，因此是求和次序不同带来的舍入差异被训练放大。",
        )
        if abs(one.curve[0].loss - many.curve[0].loss) < _EQUAL
        else (
            "they differ from the first step on, which is more than rounding.",
            "从第一步起就不同，超出舍入误差。",
        )
    )
    return say(start[0] + end[0], start[1] + end[1], **holes)


def _about_equal_time(equal: Table, say: Translator, found: Findings) -> Text | None:
    """Compare one worker with the fastest, when the fastest was done."""
    told = [row for row in equal.rows if row["loss"] is not None]
    if not any(row["setup"] == "1" for row in told) or len(told) < 2:
        return None
    fastest = max(told, key=lambda row: row["samples"])
    if fastest["setup"] == "1":
        return say(
            "At equal time one worker was the furthest: {samples} samples in {within}.",
            "时间相同时，单个进程走得最远：{within} 内 {samples} 个样本。",
            samples=equal.cell("samples", count, setup="1"),
            within=equal.cell("within_s", seconds, setup="1"),
        )
    name = (
        say.pick("one process with all cores", "使用全部核心的单个进程")
        if fastest["setup"] == CORES
        else say.pick(f"{fastest['setup']} workers", f"{fastest['setup']} 个进程")
    )
    return say(
        "At equal time ({within}) {name} had seen {samples} samples, one worker {few}: training "
        "losses {loss} and {other}, test accuracy {accuracy} and {other_accuracy}.",
        "时间相同（{within}）时，{name}已处理 {samples} 个样本，单个进程 {few} 个："
        "训练损失为 {loss} 和 {other}，测试准确率为 {accuracy} 和 {other_accuracy}。",
        name=name,
        within=equal.cell("within_s", seconds, setup="1"),
        samples=equal.cell("samples", count, setup=fastest["setup"]),
        few=equal.cell("samples", count, setup="1"),
        loss=equal.cell("loss", plain, setup=fastest["setup"]),
        other=equal.cell("loss", plain, setup="1"),
        accuracy=equal.cell("accuracy", points, setup=fastest["setup"]),
        other_accuracy=equal.cell("accuracy", points, setup="1"),
    )
