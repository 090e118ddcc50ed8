"""`Translator`: the language of a page; and `Sentence`: words around quoted numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.core.language import Language
from drumline.report.page.table import CellRef

_HOLE = re.compile(r"\{(\w+(?:\.\w+)?(?::\w+)?)\}")
"""`{name}`; where the text is data, `{row.column}` or `{row.column:form}`, too"""
_HAN = "[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
"""a Chinese character, or its punctuation"""


@dataclass(frozen=True)
class Sentence:
    """Text and quotes, one after the other."""

    parts: tuple[str | CellRef, ...]

    def __str__(self) -> str:
        """Return it as plain text."""
        return "".join(map(str, self.parts))

    @property
    def refs(self) -> tuple[CellRef, ...]:
        """The numbers in it."""
        return tuple(part for part in self.parts if isinstance(part, CellRef))


Text = str | Sentence
Filling = str | int | CellRef | Sentence


@dataclass(frozen=True)
class Translator:
    """Says things in one of the languages."""

    lang: Language = Language.EN

    def __call__(self, en: str, zh: str, /, **holes: Filling) -> Sentence:
        """Return the sentence of this language, its `{holes}` filled.

        Raises:
            ValueError: the two languages do not have the same holes, or one is not filled.
        """
        asked = {tuple(sorted(find_holes(text))) for text in (en, zh)}
        if asked != {tuple(sorted(holes))}:
            raise ValueError(f"the holes of {en!r} and {zh!r} are not {sorted(holes)}")
        return fill(self.pick(en, zh), holes)

    def pick(self, en: str, zh: str) -> str:
        """Return the words of this language, as they are."""
        return zh if self.lang == Language.ZH else en

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
    """Return what stands between the braces of a text."""
    return set(_HOLE.findall(template))


def fill(template: str, holes: Mapping[str, Filling]) -> Sentence:
    """Put quotes and words into the `{holes}` of a text."""
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
