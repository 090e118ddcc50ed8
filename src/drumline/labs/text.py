"""`LabText`: what a lab's report says, in one language; the text itself is data.

    text/optimizers.en.yaml     of one lab; optimizers.zh.yaml has the same keys and `{holes}`
    text/report.en.yaml         of all labs

Keys are dotted paths. A key is looked for in the section of the chapter, in the lab's file, then in
that of all labs: so `columns` and `names` are glossaries that a chapter may override.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

from drumline.core.language import Language
from drumline.report.page.translator import Filling, Sentence, Translator, fill, find_holes

SHARED = "report"
"""the file of all labs"""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # seven times as fast


@cache
def load_text(name: str, language: Language) -> Mapping[str, str]:
    """Read a file of text, by dotted keys.

    Raises:
        ValueError: something in it is not text, or another language has other keys or holes.
    """
    found = {lang: _read(name, lang) for lang in Language}
    first = found[Language.EN]
    for lang, text in found.items():
        odd = {key for key in first.keys() | text.keys() if _holes(first, key) != _holes(text, key)}
        if odd:
            raise ValueError(
                f"{name}.{lang}.yaml has other keys or holes than English: {sorted(odd)}"
            )
    return found[language]


def _read(name: str, language: Language) -> Mapping[str, str]:
    file = files("drumline.labs").joinpath("text", f"{name}.{language}.yaml")
    content = yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)
    return MappingProxyType(dict(_flatten(content, file.name)))


def _flatten(content: Any, where: str) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{rest}", text) for rest, text in _flatten(value, where))
        elif isinstance(key, str) and isinstance(value, str):
            yield key, value
        else:
            raise ValueError(f"{where}: {key!r}: {value!r} is not text; quote it")


def _holes(text: Mapping[str, str], key: str) -> set[str] | None:
    return find_holes(text[key]) if key in text else None


@dataclass(frozen=True)
class LabText:
    """The text of a lab in one language, as one of its chapters reads it."""

    lab: str
    lang: Language
    scope: str = ""
    """the section that is looked into first"""

    def __call__(self, key: str, /, **holes: Filling) -> Sentence:
        """Return a sentence, its holes filled.

        Raises:
            ValueError: these are not the holes of the text.
        """
        template = self.get(key)
        if find_holes(template) != holes.keys():
            raise ValueError(f"{self.lab}: {key} has other holes than {sorted(holes)}")
        return fill(template, holes)

    def get(self, key: str, default: str | None = None) -> str:
        """Return a text as it is.

        Raises:
            KeyError: there is none, and no default.
        """
        for full in (f"{self.scope}.{key}", key):
            if full in self._all:
                return self._all[full]
        if default is None:
            raise KeyError(f"{self.lab}.{self.lang}.yaml has no text {key!r} (in {self.scope!r})")
        return default

    def name(self, kind: str, value: str) -> str:
        """Return what a reader reads for a value of a column."""
        return self.get(f"names.{kind}.{value}", value)

    def names(self, kind: str) -> dict[str, str]:
        """Return what a reader reads for the values of a column."""
        prefixes = (f"names.{kind}.", f"{self.scope}.names.{kind}.")
        return {
            key.removeprefix(prefix): text
            for prefix in prefixes
            for key, text in self._all.items()
            if key.startswith(prefix)
        }

    def join(self, items: list[str]) -> str:
        """List names: `a, b and c`."""
        return Translator(self.lang).join(items)

    def within(self, scope: str) -> LabText:
        """Return the same text, for another section."""
        return LabText(self.lab, self.lang, scope)

    def in_language(self, lang: Language) -> LabText:
        """Return the same section in another language."""
        return LabText(self.lab, lang, self.scope)

    @property
    def _all(self) -> Mapping[str, str]:
        return _chain(self.lab, self.lang)


@cache
def _chain(lab: str, lang: Language) -> Mapping[str, str]:
    return ChainMap(*(dict(load_text(name, lang)) for name in (lab, SHARED)))
