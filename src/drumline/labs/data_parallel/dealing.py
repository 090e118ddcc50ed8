"""Who saw what: coverage, overlap and labels of each way of dealing out the data."""

from __future__ import annotations

import math
import statistics
from typing import Any

from drumline.labs.chapter import Chapter
from drumline.labs.data_parallel.cases import KINDS, Plan
from drumline.labs.data_parallel.heat_maps import draw_labels, draw_overlap
from drumline.labs.data_parallel.names import kind_name, kind_names, kinds_explained
from drumline.labs.results import Results
from drumline.report.page.blocks import Column, Facts, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, percent, times
from drumline.report.page.translator import Text, Translator

SPANS = ("first_epoch", "run")
_LUCK = 2.0
"""labels that differ by less than so many times what chance alone does are called mixed"""


def write_dealing(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where no run left its coverage."""
    covered = _coverages(results)
    if not covered:
        return None
    parts, labels = _parts_sheet(covered), _labels_sheet(covered)
    overlaps = _overlap_sheet(covered)
    chapter = Chapter(
        heading=say.pick("Who saw which samples", "各进程看到了哪些样本"),
        tables=[parts, labels, overlaps],
    )
    chapter.results = [
        Facts(items=kinds_explained(say, of)),
        Picture(
            name="labels",
            title=say.pick(
                "Labels that each rank trained on, and coverage", "各进程的标签分布与样本覆盖率"
            ),
            draw=lambda pen: draw_labels(pen, labels, parts, list(covered)),
            caption=say(
                "Share of each digit in what a rank drew over the run, in %; a column is a rank. "
                "Last: the share of all samples that some rank saw.",
                "整个训练中每个进程抽到的各数字所占比例（%），每列为一个进程。"
                "最后一幅：被看到过的样本比例。",
            ),
            tables=[labels, parts],
        ),
        Picture(
            name="overlap",
            title=say.pick("Samples that two ranks have in common", "两个进程共同看到的样本"),
            draw=lambda pen: draw_overlap(pen, overlaps, list(covered)),
            caption=say(
                "Of the distinct samples that the rank of the row saw, the share that the rank of "
                "the column saw, too: after one epoch (above) and after the run (below).",
                "行进程看到的不同样本中，列进程也看到的比例：上排为一轮之后，下排为训练结束时。",
            ),
            tables=[overlaps],
        ),
        _table(parts, say),
    ]
    chapter.said = _sentences(parts, covered, say, found)
    return chapter


def _coverages(results: Results) -> dict[str, dict[str, Any]]:
    found = {kind: results.record(f"{kind}-1") for kind in KINDS}
    return {
        kind: record.coverage
        for kind, record in found.items()
        if record is not None and record.coverage is not None
    }


def _parts_sheet(covered: dict[str, dict[str, Any]]) -> Table:
    columns = ("kind", "seen_first_epoch", "seen_run", "overlap_first_epoch", "overlap_run")
    sheet = Table(name="parts", columns=(*columns, "repeats", "label_skew", "largest_part"))
    for kind, coverage in covered.items():
        first = coverage["first_epoch"]["ranks"]
        draws = [rank["draws"] for rank in first]
        sheet.add(
            kind=kind,
            **{f"seen_{span}": coverage[span]["seen_share"] for span in SPANS},
            **{f"overlap_{span}": mean_overlap(coverage[span]) for span in SPANS},
            repeats=1 - sum(rank["distinct"] for rank in first) / sum(draws),
            label_skew=label_skew(coverage["run"]["ranks"]),
            largest_part=max(draws) / statistics.fmean(draws),
        )
    return sheet


def mean_overlap(table: dict[str, Any]) -> float | None:
    """Return the mean over all pairs of the share of one rank's samples that the other has, too."""
    shares = [
        both / table["ranks"][row]["distinct"]
        for row, line in enumerate(table["overlap"])
        for column, both in enumerate(line)
        if row != column and table["ranks"][row]["distinct"]
    ]
    return statistics.fmean(shares) if shares else None


def label_skew(ranks: list[dict[str, Any]]) -> float:
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


def chance_skew(ranks: list[dict[str, Any]]) -> float:
    """Return the label skew to be expected of parts that are drawn without regard to labels.

    The share of a label in m samples scatters by √(p(1−p)/m); its mean deviation is √(2/π) of that.
    """
    labels = len(ranks[0]["labels"])
    samples = statistics.fmean(max(1, rank["distinct"]) for rank in ranks)
    share = 1 / labels
    return labels / 2 * math.sqrt(2 / math.pi) * math.sqrt(share * (1 - share) / samples)


def _labels_sheet(covered: dict[str, dict[str, Any]]) -> Table:
    sheet = Table(name="labels", columns=("kind", "rank", "label", "draws", "share"))
    for kind, coverage in covered.items():
        for rank in coverage["run"]["ranks"]:
            for label, draws in rank["labels"].items():
                sheet.add(
                    kind=kind,
                    rank=rank["rank"],
                    label=int(label),
                    draws=draws,
                    share=draws / rank["draws"] if rank["draws"] else 0.0,
                )
    return sheet


def _overlap_sheet(covered: dict[str, dict[str, Any]]) -> Table:
    sheet = Table(name="overlaps", columns=("kind", "span", "rank", "other", "common", "share"))
    for kind, coverage in covered.items():
        for span in SPANS:
            table = coverage[span]
            for row, line in enumerate(table["overlap"]):
                own = table["ranks"][row]["distinct"]
                for column, common in enumerate(line):
                    share = common / own if own else 0.0
                    where = {"kind": kind, "span": span, "rank": row, "other": column}
                    sheet.add(**where, common=common, share=share)
    return sheet


def _table(parts: Table, say: Translator) -> TableBlock:
    columns = [
        Column(
            key="kind", name=say.pick("strategy", "划分方式"), align="left", labels=kind_names(say)
        ),
        Column(key="seen_first_epoch", name=say.pick("seen, 1 epoch", "一轮覆盖率"), form=percent),
        Column(key="seen_run", name=say.pick("seen, run", "总覆盖率"), form=percent),
        Column(key="repeats", name=say.pick("repeats", "重复抽取"), form=percent),
        Column(
            key="overlap_first_epoch",
            name=say.pick("overlap, 1 epoch", "一轮重叠"),
            form=percent,
        ),
        Column(key="overlap_run", name=say.pick("overlap, run", "总重叠"), form=percent),
        Column(key="label_skew", name=say.pick("label skew", "标签倾斜度"), form=percent),
        Column(key="largest_part", name=say.pick("largest part", "最大份"), form=times),
    ]
    title = say(
        "Coverage and overlap. Repeats: draws of a sample that the rank had in the epoch already; "
        "overlap: mean over pairs of ranks; label skew: total variation distance between a rank's "
        "labels and everyone's; largest part: against the mean.",
        "覆盖与重叠。重复抽取：同一轮内再次抽到的样本；重叠：每两个进程之间的平均值；"
        "标签倾斜度：进程标签分布与总体分布的全变差距离；最大份：相对于平均大小。",
    )
    return TableBlock(table=parts, columns=columns, title=title)


def _sentences(
    parts: Table, covered: dict[str, dict[str, Any]], say: Translator, found: Findings
) -> list[Text]:
    said: list[Text] = []
    if "sampling" in covered:
        said.append(_about_sampling(parts, covered["sampling"], say, found))
    said += _about_disjoint(parts, say)
    luck = {
        kind: _LUCK * chance_skew(coverage["run"]["ranks"]) for kind, coverage in covered.items()
    }
    skewed = [row["kind"] for row in parts.rows if row["label_skew"] > luck[row["kind"]]]
    mixed = [row["kind"] for row in parts.rows if row["kind"] not in skewed]
    said += [
        say(
            "{name}: a rank's labels differ from everyone's by {skew} (total variation distance); "
            "the largest part is {part} the mean.",
            "{name}：各进程的标签分布与总体相差 {skew}（全变差距离）；最大的一份是平均的 {part}。",
            name=kind_name(say, kind),
            skew=parts.cell("label_skew", percent, kind=kind),
            part=parts.cell("largest_part", times, kind=kind),
        )
        for kind in skewed
    ]
    if mixed:
        said.append(
            say(
                "With {names} every rank sees nearly the same mixture of digits.",
                "使用{names}时，各进程看到的数字组成几乎相同。",
                names=say.join([kind_name(say, kind) for kind in mixed]),
            )
        )
    return said


def _about_sampling(
    parts: Table, coverage: dict[str, Any], say: Translator, found: Findings
) -> Text:
    first = coverage["first_epoch"]
    draws = sum(rank["draws"] for rank in first["ranks"])
    expected = 1 - math.exp(-draws / coverage["samples"])
    return say(
        "Random sampling showed {seen} of the samples in the first epoch, where draws with "
        "replacement are expected to show {expected} (1 − 1/e for as many draws as samples); after "
        "the run {run} had been seen by somebody. {repeats} of a rank's draws in the epoch were "
        "repeats of its own, and two ranks had {overlap} of their samples in common.",
        "随机采样在第一轮中覆盖了 {seen} 的样本，有放回抽样的期望值是 {expected}"
        "（抽取数等于样本数时为 1 − 1/e）；"
        "训练结束时 {run} 的样本至少被看到过一次。一轮内每个进程有 {repeats} 的抽取与自己重复，"
        "两个进程的样本有 {overlap} 相同。",
        seen=parts.cell("seen_first_epoch", percent, kind="sampling"),
        expected=found.cell(
            "expected coverage of sampling in one epoch", expected, percent, of="draws, samples"
        ),
        run=parts.cell("seen_run", percent, kind="sampling"),
        repeats=parts.cell("repeats", percent, kind="sampling"),
        overlap=parts.cell("overlap_first_epoch", percent, kind="sampling"),
    )


def _about_disjoint(parts: Table, say: Translator) -> list[Text]:
    """Tell which parts stay apart for the whole run, and which only for an epoch."""
    apart = [row["kind"] for row in parts.rows if not row["overlap_run"]]
    mixing = [
        row["kind"] for row in parts.rows if row["overlap_run"] and not row["overlap_first_epoch"]
    ]
    said: list[Text] = []
    if apart:
        said.append(
            say(
                "No sample went to two ranks in the whole run with {names}: each rank keeps its "
                "part.",
                "使用{names}时，整个训练中没有样本被分给两个进程：各进程始终保留自己的一份。",
                names=say.join([kind_name(say, kind) for kind in apart]),
            )
        )
    said += [
        say(
            "With {name} parts are disjoint within an epoch, but dealt out anew in the next: after "
            "the run two ranks had {overlap} of their samples in common.",
            "使用{name}时，一轮之内各份互不相交，但下一轮重新分配："
            "训练结束时两个进程有 {overlap} 的样本相同。",
            name=kind_name(say, kind),
            overlap=parts.cell("overlap_run", percent, kind=kind),
        )
        for kind in mixing
    ]
    return said
