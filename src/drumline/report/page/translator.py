"""`Translator`: texts in the language of a page; and `Sentence`: text around cited numbers.

Texts are data: `text/en.yaml` and `text/zh.yaml` of a package, nested mappings whose leaves are
looked up by dotted keys. `{holes}` in them are filled with numbers, names and other sentences.

    time:                                 say = Translator(lang, load_texts("drumline.report"))
      title: Where the time went          say.text("time.title")
      waited: "{run} waited {share}"      say("time.waited", run="a", share=table.quote(…))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files

import yaml

from drumline.report.page.table import CellRef

_HOLE = re.compile(r"\{(\w+(?:\.\w+)?(?::\w+)?)\}")
"""`{name}`; labs have `{row.column}` and `{row.column:form}`, too"""
_HAN = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
"""a Chinese character, or its punctuation"""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # seven times as fast


class Language(StrEnum):
    """What students and readers of reports read exists in both."""

    EN = "en"
    ZH = "zh"


@dataclass(frozen=True)
class Sentence:
    """Text and cells of tables, one after the other."""

    parts: tuple[str | CellRef, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


Text = str | Sentence
Filling = str | int | CellRef | Sentence
Texts = Mapping[Language, Mapping[str, str]]
"""by language, then by dotted key"""


@cache
def load_texts(package: str, folder: str = "text") -> Texts:
    """Read the texts of reports in both languages, `<package>/<folder>/en.yaml` and `zh.yaml`.

    Raises:
        ValueError: the languages differ in their keys or holes, or a leaf is no text.
    """
    texts = {lang: dict(_read_leaves(package, f"{folder}/{lang}.yaml")) for lang in Language}
    check_texts(texts, f"{package}/{folder}")
    return texts


def page_texts(lang: Language) -> Translator:
    """Return the texts of report pages themselves, and of pages about runs."""
    return Translator(lang, load_texts("drumline.report"))


def check_texts(texts: Texts, name: str) -> None:
    """Raise ValueError where the languages of a report's texts differ in their keys or holes."""
    en, zh = texts[Language.EN], texts[Language.ZH]
    if odd := sorted(en.keys() ^ zh.keys()):
        raise ValueError(f"{name}: only one language has {', '.join(odd)}")
    for key, text in en.items():
        if find_holes(text) != find_holes(zh[key]):
            raise ValueError(f"{name}: {key} has not the same {{holes}} in both languages")


def _read_leaves(package: str, name: str) -> Iterator[tuple[str, str]]:
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    open_sections = [("", yaml.load(text, Loader=_LOADER))]
    while open_sections:
        prefix, section = open_sections.pop()
        for key, value in section.items():
            if isinstance(value, dict):
                open_sections.append((f"{prefix}{key}.", value))
            elif isinstance(key, str) and isinstance(value, str):
                yield f"{prefix}{key}", value
            else:
                raise ValueError(f"{package}/{name}: {prefix}{key} is no text: {value!r}; quote it")


@dataclass(frozen=True)
class Translator:
    """Texts in one of the languages."""

    lang: Language = Language.EN
    texts: Texts = field(default_factory=dict, repr=False)

    def __call__(self, key: str, /, **holes: Filling) -> Sentence:
        """Return the text of a key as a sentence, its `{holes}` filled.

        Raises:
            ValueError: a hole is not filled, or there is no such hole.
        """
        template = self.text(key)
        if find_holes(template) != holes.keys():
            raise ValueError(f"the holes of {key!r}, {template!r}, are not {sorted(holes)}")
        return fill(template, holes)

    def text(self, key: str) -> str:
        """Return the text of a key as it is."""
        return self.texts[self.lang][key]

    def labels(self, key: str) -> dict[str, str]:
        """Return the texts of a section by the last part of their keys."""
        own = self.texts[self.lang].items()
        return {k[len(key) + 1 :]: text for k, text in own if k.startswith(f"{key}.")}

    def join(self, items: list[str]) -> str:
        """List names: `a, b and c`, `a、b 和 c`."""
        if len(items) < 2:
            return "".join(items)
        if self.lang == "en":
            return ", ".join(items[:-1]) + " and " + items[-1]
        # a space stands only beside what is not Chinese
        before, after = (" " if char.isascii() else "" for char in (items[-2][-1], items[-1][0]))
        return "、".join(items[:-1]) + before + "和" + after + items[-1]


def find_holes(template: str) -> set[str]:
    """Return the names in braces of a report's text."""
    return set(_HOLE.findall(template))


def fill(template: str, holes: Mapping[str, Filling]) -> Sentence:
    """Fill the `{holes}` of a report's text, which gives a sentence."""
    parts: list[str | CellRef] = []
    at = 0
    for match in _HOLE.finditer(template):
        parts.append(template[at : match.start()])
        filling = holes[match.group(1)]
        if isinstance(filling, Sentence):
            parts += filling.parts
        else:
            parts.append(filling if isinstance(filling, CellRef) else str(filling))
        at = match.end()
    parts.append(template[at:])
    return Sentence(_close_up([part for part in parts if part != ""]))


def _close_up(parts: list[str | CellRef]) -> tuple[str | CellRef, ...]:
    """Drop a space beside a hole that has come to stand between two Chinese characters."""
    for at in range(1, len(parts)):
        left, right = parts[at - 1], parts[at]
        if isinstance(left, str) and re.search(f"{_HAN} $", left) and re.match(_HAN, str(right)):
            parts[at - 1] = left[:-1]
        elif isinstance(right, str) and re.search(f"{_HAN}$", str(left)):
            parts[at] = re.sub(f"^ (?={_HAN})", "", right)
    return tuple(parts)
