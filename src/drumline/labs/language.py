"""`Said`: words in both languages, with holes for the facts of a student's code.

Pages say sentences at once, by `Tongue`, and their holes hold quotes of sheets; a wrong hole there
is a mistake of ours. Here the facts come from a process that ran a student's code: any may be
missing, and they are written as the text says (`{off:.4f}`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.core.language import Both, Language


@dataclass(frozen=True)
class Said(Both):
    """One thing said in both languages; `{name}` stands for a fact."""

    def within(self, language: Language, facts: Mapping[str, Any] | None = None) -> str:
        """Return it in one language, with the facts in their places."""
        return super().within(language).format_map(_Facts(facts or {}))


class _Facts(dict[str, Any]):
    """Facts by name; one that is missing shows as a dash instead of ending the report."""

    def __missing__(self, name: str) -> _Nothing:
        return _Nothing()


class _Nothing:
    """A fact that nobody has told."""

    def __format__(self, _: str) -> str:
        return "—"
