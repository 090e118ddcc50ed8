"""Links within README and docs lead somewhere, on GitHub as on the site; READMEs stay short."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest
from doc_pages import DOCS, LANGUAGES, ROOT, pages

HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
RAW = HOME.replace("https://github.com", "https://raw.githubusercontent.com")
PAGES = [path for language in LANGUAGES for path in pages(language).values()]


def without_blocks(path: Path) -> str:
    return re.sub(r"^[ ]*```.*?^[ ]*```", "", path.read_text(), flags=re.M | re.S)


def links(path: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", without_blocks(path))


def slug(heading: str) -> str:
    """Return a heading's anchor, as GitHub and pymdownx make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_blocks(path), re.MULTILINE)
    symbols = re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE)
    return {slug(heading) for heading in headings} | set(symbols)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        place, _, anchor = unquote(link).partition("#")
        if place.startswith((f"{HOME}/blob/main/", f"{RAW}/main/")):
            target = ROOT / re.sub(r"^https://[^/]+/[^/]+/[^/]+/(blob/)?main/", "", place)
        elif place.startswith("http"):
            assert place == HOME, f"{link}: a link to elsewhere"
            continue
        else:
            target = page.parent / place if place else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_is_short_and_its_links_work_on_pypi(name):
    path = ROOT / name
    assert len(path.read_text().splitlines()) <= 220
    assert all(link.startswith("https://") for link in links(path))


def test_both_languages_have_the_same_pages_with_the_same_sections():
    english, chinese = pages("en"), pages("zh")
    assert list(english) == list(chinese)
    for name in english:
        one, other = (
            [len(marks) for marks in re.findall(r"^(#+) ", without_blocks(path), re.MULTILINE)]
            for path in (english[name], chinese[name])
        )
        assert one == other, name


def test_every_picture_is_used():
    text = "".join(path.read_text() for path in PAGES)
    unused = [path.name for path in (DOCS / "images").glob("*.png") if path.name not in text]
    assert unused == []
