"""`Language`: which of two languages the labs and the pages speak; and `Both`: words in both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Language(StrEnum):
    """What is said to students and readers of reports is said in either."""

    EN = "en"
    ZH = "zh"


@dataclass(frozen=True)
class Both:
    """One thing said in both languages, before it is known which is asked for."""

    en: str
    zh: str

    def within(self, language: Language) -> str:
        """Return it in one language."""
        return self.zh if language == Language.ZH else self.en
