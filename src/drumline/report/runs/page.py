"""The page about one run or several: `drumline report` and `drumline compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from drumline.report.page.blocks import (
    Block,
    Column,
    Facts,
    Markdown,
    Notice,
    Paragraph,
    Picture,
    Report,
    Section,
    TableBlock,
)
from drumline.report.page.table import (
    Findings,
    count,
    milliseconds,
    plain,
    points,
    seconds,
    size,
)
from drumline.report.page.translator import Text, Translator
from drumline.report.runs.pictures import draw_curves, draw_ledger
from drumline.report.runs.record import RunRecord
from drumline.report.runs.sentences import say_findings
from drumline.report.runs.tables import RunTables, build_tables


def build_runs_report(records: Sequence[RunRecord], say: Translator) -> Report:
    """Put the page together: what cannot be shown is said, the rest is shown."""
    tables = build_tables(records)
    findings = Findings()
    said = say_findings(records, tables, findings, say)
    names = say.join([record.name for record in records])
    sections: list[tuple[str, str, list[Block]]] = [
        ("runs", say.pick("Runs", "运行"), [*_gaps(records, say), _runs_table(tables, say)]),
        ("differences", say.pick("What differs", "差异"), _differences(tables, say)),
        ("curves", say.pick("Training", "训练过程"), _curves(tables, say)),
        ("time", say.pick("Where the time went", "时间去向"), _time(tables, say)),
        ("analysis", say.pick("Analysis", "分析"), [Paragraph(said=said, findings=True)]),
        ("parameters", say.pick("Parameters", "参数"), _parameters(records, say)),
    ]
    summary: Text = (
        said[0] if said else say("There is nothing to tell yet.", "暂时没有可说的内容。")
    )
    return Report(
        title=names,
        lang=say.lang,
        summary=summary,
        sections=[
            Section(slug=slug, heading=heading, blocks=blocks)
            for slug, heading, blocks in sections
            if blocks and (slug != "analysis" or said)
        ],
        tables=[*tables.all(), *([findings.table] if findings.table.rows else [])],
    )


def _gaps(records: Sequence[RunRecord], say: Translator) -> list[Block]:
    return [Notice(said=gap) for record in records for gap in record.say_gaps(say.lang)]


def _runs_table(tables: RunTables, say: Translator) -> TableBlock:
    columns = [
        Column(key="run", name=say.pick("run", "运行"), align="left"),
        Column(key="model", name=say.pick("model", "模型"), align="left"),
        Column(key="strategy", name=say.pick("strategy", "策略"), align="left"),
        Column(key="ranks", name=say.pick("ranks", "进程数"), form=count),
        Column(key="steps", name=say.pick("steps", "步数"), form=count),
        Column(key="loss", name=say.pick("last loss", "最后损失"), form=plain),
        Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
        Column(key="train_s", name=say.pick("in steps", "训练用时"), form=seconds),
        Column(
            key="step_ms",
            name=say.pick("a step (quartiles)", "每步（四分位数）"),
            form=milliseconds,
        ),
        Column(key="samples_per_s", name=say.pick("samples/s", "样本/秒"), form=count),
        Column(key="peak_bytes", name=say.pick("peak memory", "内存峰值"), form=size),
    ]
    title = say.pick("The runs", "各次运行")
    return TableBlock(table=tables.runs, columns=columns, title=title)


def _differences(tables: RunTables, say: Translator) -> list[Block]:
    _, *told = tables.differences.columns
    if len(told) < 2:
        return []
    if not tables.differences.rows:
        same = say(
            "The specs are the same word for word: what differs between the runs is chance, or the "
            "machine.",
            "各次运行的配置逐字相同：结果若有不同，来自偶然因素或机器本身。",
        )
        return [Paragraph(said=[same])]
    columns = [
        Column(key="key", name=say.pick("key", "键"), align="left"),
        *(Column(key=name, name=name, align="left") for name in told),
    ]
    title = say.pick("Keys of the spec that are not the same", "配置中不相同的键")
    return [TableBlock(table=tables.differences, columns=columns, title=title)]


def _curves(tables: RunTables, say: Translator) -> list[Block]:
    if not tables.curves.rows:
        return []
    return [
        Picture(
            name="curves",
            title=say.pick(
                "Losses, and test accuracy where it was looked at", "损失，以及测试准确率（若有）"
            ),
            caption=say.pick(
                "Strong lines are means over neighbouring steps, faint ones every step.",
                "粗线为相邻若干步的均值，细线为每一步。",
            ),
            draw=draw_curves(tables.curves, tables.scores),
            tables=[tables.curves, *([tables.scores] if tables.scores.rows else [])],
        )
    ]


def _time(tables: RunTables, say: Translator) -> list[Block]:
    if not tables.ledger.rows:
        return []
    parts = [
        ("data_ms", say.pick("data", "数据")),
        ("compute_ms", say.pick("compute", "计算")),
        ("wait_ms", say.pick("waiting", "等待")),
        ("transfer_ms", say.pick("transfer", "传输")),
        ("caused_ms", say.pick("others waited for it", "其他进程等它")),
    ]
    columns = [
        Column(key="run", name=say.pick("run", "运行"), align="left"),
        Column(key="rank", name=say.pick("rank", "进程"), form=count),
        *(Column(key=key, name=name, form=milliseconds) for key, name in parts),
    ]
    title = say.pick("A step of each rank (mean)", "每个进程的一步（均值）")
    caption = say.pick(
        "Waiting and transfer are what was not hidden behind compute; the first step is left out.",
        "等待与传输只计未被计算掩盖的部分；不含第一步。",
    )
    return [
        Picture(
            name="ledger",
            title=say.pick("Where each rank's time went", "每个进程的时间去向"),
            caption=caption,
            draw=draw_ledger(tables.ledger),
            tables=[tables.ledger],
        ),
        TableBlock(table=tables.ledger, columns=columns, title=title),
    ]


def _parameters(records: Sequence[RunRecord], say: Translator) -> list[Block]:
    blocks: list[Block] = []
    for record in records:
        machine = record.manifest
        items: list[tuple[str, Text]] = [
            (say.pick("run", "运行"), str(record.path)),
            (say.pick("started", "开始"), str(machine.get("started", "?"))),
            (say.pick("hosts", "主机"), _hosts(machine)),
            (say.pick("versions", "版本"), _versions(machine)),
            (say.pick("commit", "提交"), str(machine.get("git_commit") or "–")),
        ]
        blocks.append(Facts(items=items))
        if record.words:
            text = yaml.safe_dump(record.words, sort_keys=False, allow_unicode=True)
            blocks.append(Markdown(text=f"```yaml\n{text}```"))
    return blocks


def _hosts(machine: dict[str, Any]) -> str:
    hosts = machine.get("hosts")
    return ", ".join(map(str, hosts)) if isinstance(hosts, list) and hosts else "?"


def _versions(machine: dict[str, Any]) -> str:
    packages = machine.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    named = [f"Python {machine['python']}"] if "python" in machine else []
    return ", ".join([*named, *(f"{name} {version}" for name, version in packages.items())]) or "?"
