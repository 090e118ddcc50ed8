"""A lab's report: the sections that graders look for, filled with what was found.

principle    from the lab's task sheet
code         the source that ran, by symbol
parameters   settings, machine, versions, seeds, every experiment
results      tables and pictures
analysis     sentences made from the numbers, and the author's own words
again        how to make it again, and how to check it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from drumline.core.formatting import format_rate
from drumline.labs.catalogue import Entry, read_principle
from drumline.labs.experiment import Experiment, Results, Training
from drumline.labs.lab import Lab, WriteUp
from drumline.labs.settings import LabSettings
from drumline.report.page.blocks import (
    Block,
    Column,
    Facts,
    Markdown,
    Notice,
    OwnWords,
    Paragraph,
    Report,
    Section,
    TableBlock,
)
from drumline.report.page.folder import WORDS
from drumline.report.page.source import excerpt
from drumline.report.page.style import chinese_font
from drumline.report.page.table import Table, seconds
from drumline.report.page.translator import Translator


def build_report(
    lab: Lab,
    entry: Entry,
    results: Results,
    experiments: Sequence[Experiment],
    machine: Mapping[str, Any],
    words: str,
    say: Translator,
) -> Report:
    """Put a lab's report together."""
    found = lab.write_up(results, say)
    listed = _experiments_sheet(experiments, results)
    again = f"drumline lab run {lab.number}" + _options(results.settings)
    sections: list[tuple[str, str, Sequence[Block]]] = [
        (
            "principle",
            say.pick("Principle", "原理"),
            [Markdown(text=read_principle(entry, say.lang))],
        ),
        ("code", say.pick("Code", "代码"), _code(lab, say)),
        (
            "parameters",
            say.pick("Parameters", "参数"),
            _parameters(results, listed, machine, say),
        ),
        ("results", say.pick("Results", "结果"), [*_gaps(results, say), *found.results]),
        ("analysis", say.pick("Analysis", "分析"), _analysis(found, words, say)),
        ("again", say.pick("Make it again", "复现"), [_again(again, say)]),
    ]
    title = say.pick(entry.title.en, entry.title.zh)
    return Report(
        title=say.pick(f"Lab {lab.number}: {title}", f"实验 {lab.number}：{title}"),
        lang=say.lang,
        summary=found.summary,
        sections=[
            Section(slug=slug, heading=heading, blocks=blocks) for slug, heading, blocks in sections
        ],
        tables=[*found.tables, listed],
    )


def _options(settings: LabSettings) -> str:
    words = [" --full"] if settings.full else []
    if settings.nodes > 1:
        rate = "" if settings.link.rate is None else f" link={format_rate(settings.link.rate)}"
        words.append(f" nodes={settings.nodes}{rate}")
    if settings.seed != LabSettings().seed:
        words.append(f" seed={settings.seed}")
    return "".join(words)


def _code(lab: Lab, say: Translator) -> list[Block]:
    intro = say(
        "What ran, cut out of the installed package by symbol; nothing here is retyped.",
        "以下是实际运行的代码，按符号从已安装的软件包中摘出，没有一行是另外抄写的。",
    )
    return [Paragraph(said=[intro]), *(excerpt(path, symbol) for path, symbol in lab.code)]


def _experiments_sheet(experiments: Sequence[Experiment], results: Results) -> Table:
    table = Table(
        name="experiments", columns=("name", "ranks", "nodes", "seed", "train_s", "weights_sha256")
    )
    for one in experiments:
        record = results.record(one.name) if isinstance(one, Training) else None
        summary = record.summary if record is not None else {}
        spec = one.spec if isinstance(one, Training) else None
        table.add(
            name=one.name,
            ranks=None if spec is None else spec.world_size,
            nodes=None if spec is None else spec.nodes,
            seed=None if spec is None else spec.seed,
            train_s=summary.get("train_s"),
            weights_sha256=(summary.get("weights_sha256") or "")[:16],
        )
    return table


def _parameters(
    results: Results, listed: Table, machine: Mapping[str, Any], say: Translator
) -> list[Block]:
    settings = results.settings
    packages = machine.get("packages", {})
    rate = settings.link.rate
    limit = say.pick("no limit", "不限速") if rate is None else format_rate(rate)
    where = say.pick("this host", "本机")
    if settings.nodes > 1:
        where = say.pick(
            f"{settings.nodes} simulated nodes, links: {limit}",
            f"{settings.nodes} 个模拟节点，链路：{limit}",
        )
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    items = [
        (
            say.pick("form", "规模"),
            say.pick("full", "完整") if settings.full else say.pick("quick", "快速"),
        ),
        (say.pick("where", "运行位置"), where),
        (say.pick("seed", "随机种子"), str(settings.seed)),
        (
            say.pick("processor", "处理器"),
            say.pick("{cpu}, {count} cores", "{cpu}，{count} 核").format(
                cpu=machine.get("cpu", "?"), count=machine.get("cpu_count", "?")
            ),
        ),
        (
            say.pick("system", "系统"),
            f"{machine.get('platform', '?')}, Python {machine.get('python', '?')}",
        ),
        (say.pick("versions", "版本"), versions),
        (say.pick("load at the end", "结束时负载"), str(machine.get("load_1min", "?"))),
    ]
    names: list[tuple[str, str, Literal["left", "right"]]] = [
        ("name", say.pick("experiment", "实验"), "left"),
        ("ranks", say.pick("ranks", "进程数"), "right"),
        ("nodes", say.pick("nodes", "节点数"), "right"),
        ("seed", say.pick("seed", "种子"), "right"),
        ("train_s", say.pick("time in steps", "训练用时"), "right"),
        ("weights_sha256", say.pick("weights (sha256)", "权重（sha256）"), "left"),
    ]
    columns = [
        Column(key=key, name=name, form=seconds if key == "train_s" else str, align=align)
        for key, name, align in names
    ]
    title = say.pick(
        "All experiments; each spec is in runs/<name>/spec.yaml",
        "全部实验；每个实验的配置见 runs/<名称>/spec.yaml",
    )
    return [Facts(items=items), TableBlock(table=listed, columns=columns, title=title, folded=True)]


def _gaps(results: Results, say: Translator) -> list[Block]:
    blocks: list[Block] = [
        Notice(
            said=say(
                "{name} failed and is missing below: {why}",
                "{name} 失败，下文缺少其结果：{why}",
                name=name,
                why=why,
            )
        )
        for name, why in results.failed.items()
    ]
    if say.lang == "zh" and chinese_font() is None:
        blocks.append(
            Notice(
                said="本机没有含中文字符的字体，图中文字因此为英文；"
                "安装一种（例如 Debian 的 fonts-noto-cjk）后重新生成即可。"
            )
        )
    return blocks


def _analysis(found: WriteUp, words: str, say: Translator) -> list[Block]:
    own = Paragraph(said=[say("In the author's own words:", "作者自己的分析：")])
    return [*found.analysis, own, OwnWords(file=WORDS, text=words)]


def _again(command: str, say: Translator) -> Markdown:
    does = say.pick(
        "measures everything again. `drumline lab verify FOLDER` checks that no file of the report "
        "was changed, that every number on the page is the one in its CSV file, and that the CSV "
        "files follow from the runs; with `--rerun` it trains again and compares the weights.",
        "会重新测量全部内容。`drumline lab verify 目录` 检查报告的文件未被改动、"
        "页面上的每个数字与其 CSV 文件一致、CSV 文件与运行记录一致；"
        "加上 `--rerun` 会重新训练并比较权重。",
    )
    return Markdown(text=f"```\n{command}\n```\n\n{does}")
