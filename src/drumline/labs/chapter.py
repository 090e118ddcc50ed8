"""`Chapter`: one question of a lab, with the sheets, pictures and sentences that answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from drumline.labs.lab import WriteUp
from drumline.labs.results import Results
from drumline.report.page.blocks import Block, Markdown, Paragraph
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table
from drumline.report.page.translator import Text, Translator


@dataclass(kw_only=True)
class Chapter:
    """What one question came to."""

    heading: str
    results: list[Block] = field(default_factory=list)
    """tables and pictures, in order"""
    said: list[Text] = field(default_factory=list)
    """the analysis, each a point of its own"""
    tables: list[Table] = field(default_factory=list)


P = TypeVar("P")
Writer = Callable[[Results, P, Translator, Findings], Chapter | None]


def write_chapters(
    writers: Sequence[Writer[P]],
    results: Results,
    plan: P,
    say: Translator,
    summarize: Callable[[Mapping[str, Table]], Text],
) -> WriteUp:
    """Write the chapters that the runs allow, and sum up what they came to.

    Args:
        writers: one for each chapter; None where its runs are missing.
        results: of the lab.
        plan: how large the lab is.
        say: in which language.
        summarize: called with the sheets of all chapters, by their names.
    """
    found = Findings()
    chapters = [write(results, plan, say, found) for write in writers]
    tables = {table.name: table for one in chapters if one is not None for table in one.tables}
    return _bind(summarize(tables), chapters, found)


def _bind(summary: Text, chapters: Iterable[Chapter | None], found: Findings) -> WriteUp:
    """Put chapters one after the other; those that could not be written are None."""
    written = [chapter for chapter in chapters if chapter is not None]
    return WriteUp(
        summary=summary,
        results=[block for one in written for block in _under(one.heading, one.results)],
        analysis=[
            block
            for one in written
            if one.said
            for block in _under(one.heading, [Paragraph(said=one.said, findings=True)])
        ],
        tables=[*(table for one in written for table in one.tables), found.table],
    )


def _under(heading: str, blocks: Sequence[Block]) -> list[Block]:
    return [Markdown(text=f"### {heading}"), *blocks]
