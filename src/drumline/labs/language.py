"""Words in both languages of the labs, English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Language(StrEnum):
    """A language that the labs speak."""

    EN = "en"
    ZH = "zh"


@dataclass(frozen=True)
class Said:
    """One thing said in both languages; `{name}` stands for a fact."""

    en: str
    zh: str

    def within(self, language: Language, facts: Mapping[str, Any] | None = None) -> str:
        """Return it in one language, with the facts in their places."""
        text = self.zh if language is Language.ZH else self.en
        return text.format_map(_Facts(facts or {}))


class _Facts(dict[str, Any]):
    """Facts by name; one that is missing shows as a dash instead of ending the report."""

    def __missing__(self, name: str) -> _Nothing:
        return _Nothing()


class _Nothing:
    """A fact that nobody has told."""

    def __format__(self, _: str) -> str:
        return "—"
