"""Figures in a page and beside it: one drawing, inline as SVG, and as PNG, SVG and PDF files."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

from drumline.core.errors import RunDirError
from drumline.core.language import Language
from drumline.report.page.blocks import Picture
from drumline.report.page.style import PAGE_INK, FigureStyle

FORMATS = ("png", "svg", "pdf")
_DPI = 160
_REFERENCE = re.compile(r'(\bid="|url\(#|href="#)([^")]+)')


def render_inline(picture: Picture, lang: Language) -> str:
    """Draw for the page: text stays text, ink is the page's own, names are unique in the page."""
    style = FigureStyle(lang=lang, ink=PAGE_INK)
    out = io.StringIO()
    with style.drawing(**{"svg.fonttype": "none"}):
        picture.draw(style).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _REFERENCE.sub(rf"\g<1>{picture.name}-\2", text)
    # the page decides how wide it is
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    label = html.escape(str(picture.title))
    text = text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return text.replace(PAGE_INK, "currentColor")


def write_files(picture: Picture, folder: Path, lang: Language) -> list[Path]:
    """Draw for files; returns those written.

    Raises:
        RunDirError: one cannot be written.
    """
    style = FigureStyle(lang=lang)
    files = [folder / f"{picture.name}.{ending}" for ending in FORMATS]
    with style.drawing():
        figure = picture.draw(style)
        for file in files:
            dated = {"CreationDate" if file.suffix == ".pdf" else "Date": None}
            try:
                figure.savefig(file, dpi=_DPI, metadata=None if file.suffix == ".png" else dated)
            except OSError as error:
                raise RunDirError(f"cannot write {file}: {error.strerror}") from None
    return files
