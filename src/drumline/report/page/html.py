"""A `Report` as one HTML file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

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
from drumline.report.page.table import CellRef
from drumline.report.page.translator import Text, Translator, page_texts
from drumline.report.plots import render_inline

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def render_html(report: Report, *, version: str, made: str) -> str:
    """Return the page; `made`: when, as the footer says it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = files("drumline.report.page").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        report=report,
        version=version,
        made=made,
        said=said,
        render=lambda block: render_block(block, report),
        labels=page_texts(report.lang).labels("page"),
    )


def said(what: Text) -> Markup:
    """Render a sentence, each number with where it comes from."""
    if isinstance(what, str):
        return escape(what)
    return Markup("").join(
        _quote(part) if isinstance(part, CellRef) else escape(part) for part in what.parts
    )


def _quote(ref: CellRef) -> Markup:
    interval = (
        Markup(' data-low="{}" data-high="{}"').format(ref.low, ref.high)
        if ref.low is not None
        else Markup("")
    )
    value = "" if ref.value is None else ref.value
    return Markup(
        '<data value="{}" data-sheet="{}" data-row="{}" data-column="{}"{} '
        'title="{}.csv, row {}, {}">{}</data>'
    ).format(
        value,
        ref.table,
        ref.row,
        ref.column,
        interval,
        ref.table,
        ref.row + 1,
        ref.column,
        ref.text,
    )


def render_block(block: Block, report: Report) -> Markup:
    """Render one block."""
    say = page_texts(report.lang)
    match block:
        case Paragraph(said=sentences, findings=True):
            items = Markup("").join(Markup("<li>{}</li>\n").format(said(one)) for one in sentences)
            return Markup('<ul class="findings">\n{}</ul>').format(items)
        case Paragraph(said=sentences):
            space = Markup(say.text("page.between_sentences"))
            return Markup("<p>{}</p>").format(space.join(said(one) for one in sentences))
        case Markdown(text=text):
            return _markdown(text)
        case Notice(said=sentence):
            return Markup('<p class="notice">{}</p>').format(said(sentence))
        case Facts(items=items):
            rows = Markup("").join(
                Markup("<dt>{}</dt><dd>{}</dd>\n").format(name, said(value))
                for name, value in items
            )
            return Markup("<dl>\n{}</dl>").format(rows)
        case Code():
            return _code(block, say)
        case OwnWords():
            return _own_words(block, say)
        case TableBlock():
            return _table(block)
        case Picture():
            return _picture(block, report)


def _markdown(text: str) -> Markup:
    # its own headings stand below the section's
    shifted = _MARKDOWN.parse(text)
    for token in shifted:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h3"
    return Markup(_MARKDOWN.renderer.render(shifted, _MARKDOWN.options, {}))


def _code(code: Code, say: Translator) -> Markup:
    at = say("page.line", line=code.line)
    return Markup(
        "<details><summary><code>{}</code> · {}{}</summary><pre><code>{}</code></pre></details>"
    ).format(code.symbol, code.path, str(at), code.text)


def _own_words(own: OwnWords, say: Translator) -> Markup:
    hint = str(say("page.own_words_missing", file=own.file))
    inner = (
        _markdown(own.text) if own.text.strip() else Markup('<p class="soft">{}</p>').format(hint)
    )
    return Markup('<div class="own">{}</div>').format(inner)


def _table(table: TableBlock) -> Markup:
    head = Markup("").join(
        Markup('<th class="{}">{}</th>').format(column.align, column.name)
        for column in table.columns
    )
    rows = Markup("").join(
        Markup("<tr>{}</tr>\n").format(
            Markup("").join(
                Markup('<td class="{}">{}</td>').format(column.align, _table_cell(cell))
                for column, cell in zip(table.columns, cells, strict=True)
            )
        )
        for cells in table.cells()
    )
    title = said(table.title)
    drawn = Markup(
        '<div class="scroll"><table aria-label="{}"><thead><tr>{}</tr></thead>\n'
        "<tbody>{}</tbody></table></div>"
    ).format(str(table.title), head, rows)
    if not table.folded:  # the title does not scroll with the table
        return Markup('<p class="title">{}</p>\n{}').format(title, drawn)
    return Markup("<details><summary>{}</summary>{}</details>").format(title, drawn)


def _table_cell(cell: CellRef) -> Any:
    return cell.text if isinstance(cell.value, str) else _quote(cell)


def _picture(picture: Picture, report: Report) -> Markup:
    drawn = Markup(render_inline(picture, report.lang))
    say = page_texts(report.lang)
    files_of = say.text("page.comma").join(f"data/{table.name}.csv" for table in picture.tables)
    caption = [said(picture.caption)] if picture.caption else []
    if files_of:
        caption.append(said(say("page.files", files=files_of)))
    return Markup(
        '<figure><b>{}</b><div class="scroll">{}</div><figcaption>{}</figcaption></figure>'
    ).format(said(picture.title), drawn, Markup(say.text("page.between_sentences")).join(caption))
