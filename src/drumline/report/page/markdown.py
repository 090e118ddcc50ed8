"""A `Report` as Markdown, for those who edit or hand in text; figures are files beside it."""

from __future__ import annotations

from drumline.report.page.blocks import (
    Block,
    Code,
    Facts,
    Markdown,
    Notice,
    OwnWords,
    Paragraph,
    Picture,
    Report,
    TableBlock,
)
from drumline.report.page.translator import Translator, page_texts


def render_markdown(report: Report) -> str:
    """Return a report as Markdown."""
    parts = [f"# {report.title}", str(report.summary)]
    for section in report.sections:
        parts.append(f"## {section.heading}")
        parts += [_render(block, page_texts(report.lang)) for block in section.blocks]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _render(block: Block, say: Translator) -> str:
    match block:
        case Paragraph(said=sentences, findings=True):
            return "\n".join(f"- {one}" for one in sentences)
        case Paragraph(said=sentences):
            return say.text("page.between_sentences").join(map(str, sentences))
        case Markdown(text=text):
            return _lowered(text)
        case Notice(said=sentence):
            return f"> **!** {sentence}"
        case Facts(items=items):
            return "\n".join(f"- {name}{say.text('page.colon')}{value}" for name, value in items)
        case Code(path=path, symbol=symbol, line=line, text=text):
            at = say("page.source", path=path, line=line)
            return f"`{symbol}`{at}\n\n```python\n{text}\n```"
        case OwnWords(text=text):
            return f"### {say.text('page.own_words')}\n\n{_lowered(text)}"
        case TableBlock():
            return _table(block)
        case Picture(name=name, title=title, caption=caption):
            return f"![{title}](figures/{name}.png)\n\n*{title}* {caption}"


def _lowered(text: str) -> str:
    """Put the headings of somebody's text below those of the sections; code stays as it is."""
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        is_heading = line.startswith("#") and not fenced
        lines.append("### " + line.lstrip("#").strip() if is_heading else line)
    return "\n".join(lines)


def _table(table: TableBlock) -> str:
    rows = [[column.name for column in table.columns]]
    rows += [[str(cell) for cell in cells] for cells in table.cells()]
    ruler = ["---" if column.align == "left" else "---:" for column in table.columns]
    rows.insert(1, ruler)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return f"**{table.title}**\n\n" + "\n".join(lines)
