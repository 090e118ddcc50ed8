"""`Chapter`: one question of a lab, with the sheets, pictures and sentences that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drumline.labs.lab import WriteUp
from drumline.report.page.blocks import Block, Markdown, Paragraph
from drumline.report.page.findings import Findings
from drumline.report.page.prose import Said
from drumline.report.page.sheet import Sheet


@dataclass(kw_only=True)
class Chapter:
    """What one question came to."""

    heading: str
    results: list[Block] = field(default_factory=list)
    """tables and pictures, in order"""
    said: list[Said] = field(default_factory=list)
    """the analysis, each a point of its own"""
    sheets: list[Sheet] = field(default_factory=list)


def bind(summary: Said, chapters: Iterable[Chapter | None], found: Findings) -> WriteUp:
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
        sheets=[*(sheet for one in written for sheet in one.sheets), found.sheet],
    )


def _under(heading: str, blocks: Sequence[Block]) -> list[Block]:
    return [Markdown(text=f"### {heading}"), *blocks]
