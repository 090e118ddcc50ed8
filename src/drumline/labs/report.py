"""A lab's report: the sections that graders look for, filled with what was found.

principle    from the lab's task sheet
code         the source that ran, by symbol
parameters   settings, machine, versions, seeds, every experiment
results      tables and pictures
analysis     sentences made from the numbers, and the author's own words
again        how to make it again, and how to check it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from drumline.core.formatting import format_rate
from drumline.labs.catalogue import find_lab, read_code, read_principle
from drumline.labs.chapter import Chapter, Lab
from drumline.labs.experiment import Experiment, LabSettings, Results, Training
from drumline.labs.text import SHARED, LabText, lab_text
from drumline.report.page.blocks import (
    Block,
    Facts,
    Markdown,
    Notice,
    OwnWords,
    Paragraph,
    Report,
    Section,
    excerpt,
)
from drumline.report.page.folder import WORDS
from drumline.report.page.table import seconds
from drumline.report.page.translator import Language
from drumline.report.plots import chinese_font

Machine = Mapping[str, Any]
"""what `describe_machine` found; nothing where a report is only verified"""


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One experiment; of a measurement only its name is known."""

    name: str
    ranks: int | None = None
    nodes: int | None = None
    seed: int | None = None
    train_s: Annotated[float | None, seconds] = None
    weights_sha256: str = ""


def build_report(
    lab: Lab, results: Results, machine: Machine, own_words: str, lang: Language
) -> Report:
    """Put a lab's report together."""
    text = lab_text(SHARED, lang)
    entry = find_lab(lab.number)
    found = lab.write_up(results, lang)
    parameters = Chapter.alone(text.within("parameters"))
    _write_parameters(parameters, results, lab.experiments(results.settings), machine)
    written = OwnWords(file=WORDS, text=own_words)
    command = f"drumline lab run {lab.number}{_options(results.settings)}"
    contents: dict[str, Sequence[Block]] = {
        "principle": [Markdown(text=read_principle(entry, lang))],
        "code": [Paragraph(said=[text("code")]), *(excerpt(*where) for where in read_code(entry))],
        "parameters": parameters.results,
        "results": [*_gaps(results, text), *found.results],
        "analysis": [*found.analysis, Paragraph(said=[text("own_words")]), written],
        "again": [Markdown(text=f"```\n{command}\n```\n\n{text.text('again')}")],
    }
    sections = [
        Section(slug=slug, heading=text.text(f"sections.{slug}"), blocks=blocks)
        for slug, blocks in contents.items()
    ]
    title = text.text("title").format(number=lab.number, title=entry.text("title", lang))
    tables = [*found.tables, *parameters.tables.values()]
    return Report(title=title, lang=lang, summary=found.summary, sections=sections, tables=tables)


def _options(settings: LabSettings) -> str:
    options = [" --full"] if settings.full else []
    if settings.nodes > 1:
        rate = "" if settings.link.rate is None else f" link={format_rate(settings.link.rate)}"
        options.append(f" nodes={settings.nodes}{rate}")
    if settings.seed != LabSettings().seed:
        options.append(f" seed={settings.seed}")
    return "".join(options)


def _write_parameters(
    chapter: Chapter, results: Results, experiments: Sequence[Experiment], machine: Machine
) -> None:
    """Write where and how everything ran, and list the experiments."""
    settings, text = results.settings, chapter.text
    rate = settings.link.rate
    limit = text.text("no_limit") if rate is None else format_rate(rate)
    where = "nodes" if settings.nodes > 1 else "host"
    known = {name: machine.get(name, "?") for name in ("cpu", "cpu_count", "platform", "python")}
    packages = machine.get("packages", {})
    facts = {
        "form": text.text("full" if settings.full else "quick"),
        "where": text.text(where).format(nodes=settings.nodes, limit=limit),
        "seed": str(settings.seed),
        "processor": text.text("cores").format(**known),
        "system": f"{known['platform']}, Python {known['python']}",
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "load": str(machine.get("load_1min", "?")),
    }
    items = [(text.text(f"facts.{name}"), fact) for name, fact in facts.items()]
    chapter.results.append(Facts(items=items))
    listed = chapter.tabulate("experiments", ExperimentRow, _listed(experiments, results))
    columns = ("name", "ranks", "nodes", "seed", "train_s", "weights_sha256")
    chapter.show(listed, *columns, folded=True)


def _listed(experiments: Sequence[Experiment], results: Results) -> Iterator[ExperimentRow]:
    for one in experiments:
        if not isinstance(one, Training):
            yield ExperimentRow(name=one.name)
            continue
        record = results.record(one.name)
        summary = record.summary if record is not None else {}
        yield ExperimentRow(
            name=one.name,
            ranks=one.spec.world_size,
            nodes=one.spec.nodes,
            seed=one.spec.seed,
            train_s=summary.get("train_s"),
            weights_sha256=(summary.get("weights_sha256") or "")[:16],
        )


def _gaps(results: Results, text: LabText) -> list[Notice]:
    """Tell what failed, and where figures cannot be in the page's language."""
    notices = [
        Notice(said=text("failed", name=name, why=why)) for name, why in results.failed.items()
    ]
    if text.lang == Language.ZH and chinese_font() is None:
        notices.append(Notice(said=text("no_font")))
    return notices
