"""A `Report` as a page: HTML that needs nothing else (no network, no script, no font), or Markdown.

`page.html` is the HTML's template, with a macro for each kind of block. The Markdown is for those
who edit or hand in text; its figures are files beside it.
"""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from drumline.report.page import blocks
from drumline.report.page.translator import Translator, page_texts
from drumline.report.plots import render_inline

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def render_html(report: blocks.Report, *, version: str, made: str, draws: bool = True) -> str:
    """Return a report as an HTML page, with figures if it `draws`; `made`: when, for the footer."""

    def draw(picture: blocks.Picture) -> Markup:
        return Markup(render_inline(picture, report.lang) if draws else "")

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = files("drumline.report.page").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        report=report,
        version=version,
        made=made,
        say=page_texts(report.lang),
        kind=lambda block: type(block).__name__,
        draw=draw,
        markdown=_markdown,
    )


def _markdown(text: str) -> Markup:
    # its own headings stand below the section's
    shifted = _MARKDOWN.parse(text)
    for token in shifted:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h3"
    return Markup(_MARKDOWN.renderer.render(shifted, _MARKDOWN.options, {}))


def render_markdown(report: blocks.Report) -> str:
    """Return a report as Markdown."""
    parts = [f"# {report.title}", str(report.summary)]
    for section in report.sections:
        parts.append(f"## {section.heading}")
        parts += [_render(block, page_texts(report.lang)) for block in section.blocks]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _render(block: blocks.Block, say: Translator) -> str:
    match block:
        case blocks.Paragraph(said=sentences, findings=True):
            return "\n".join(f"- {one}" for one in sentences)
        case blocks.Paragraph(said=sentences):
            return say.text("page.between_sentences").join(map(str, sentences))
        case blocks.Markdown(text=text):
            return _lowered(text)
        case blocks.Notice(said=sentence):
            return f"> **!** {sentence}"
        case blocks.Facts(items=items):
            return "\n".join(f"- {name}{say.text('page.colon')}{value}" for name, value in items)
        case blocks.Code(path=path, symbol=symbol, line=line, text=text):
            at = say("page.source", path=path, line=line)
            return f"`{symbol}`{at}\n\n```python\n{text}\n```"
        case blocks.OwnWords(text=text):
            return f"### {say.text('page.own_words')}\n\n{_lowered(text)}"
        case blocks.TableBlock():
            return _table(block)
        case blocks.Picture(name=name, title=title, caption=caption):
            return f"![{title}](figures/{name}.png)\n\n*{title}* {caption}"


def _lowered(text: str) -> str:
    """Put the headings of somebody's text below those of the sections; code stays as it is."""
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        is_heading = line.startswith("#") and not fenced
        lines.append("### " + line.lstrip("#").strip() if is_heading else line)
    return "\n".join(lines)


def _table(table: blocks.TableBlock) -> str:
    ruler = ["---" if column.align == "left" else "---:" for column in table.columns]
    rows = [[column.name for column in table.columns], ruler]
    rows += [[str(cell) for cell in cells] for cells in table.cells()]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return f"**{table.title}**\n\n" + "\n".join(lines)
