"""A `Report` as one HTML file that needs nothing else: no network, no script, no font.

`page.html` is the template, with a macro for each kind of block.
"""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from drumline.report.page.blocks import Picture, Report
from drumline.report.page.translator import page_texts
from drumline.report.plots import render_inline

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def render_html(report: Report, *, version: str, made: str, draws: bool = True) -> str:
    """Return a report as an HTML page, with figures if it `draws`; `made`: when, for the footer."""

    def draw(picture: Picture) -> Markup:
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
