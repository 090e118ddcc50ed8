"""`LabText`: what a lab's report says, in one language; the text itself is data.

    text/optimizers/en.yaml     of one lab; zh.yaml beside it has the same keys and `{holes}`
    text/report/en.yaml         of all labs

Keys are dotted paths. A key is looked for in the section of the chapter, in the lab's file, then in
that of all labs: so `columns` and `names` are glossaries that a chapter may override.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from drumline.report.page.translator import Language, Texts, Translator, load_texts

SHARED = "report"
"""the text of all labs"""


@cache
def load_lab_texts(lab: str) -> Texts:
    """Read the text of a lab, and that of all labs.

    Raises:
        ValueError: the languages differ in their keys or holes, or something is no text.
    """
    shared, own = (load_texts("drumline.labs", f"text/{name}") for name in (SHARED, lab))
    return {lang: {**shared[lang], **own[lang]} for lang in Language}


@dataclass(frozen=True)
class LabText(Translator):
    """The text of a lab in one language, as one of its chapters reads it."""

    scope: str = ""
    """the section that is looked into first"""

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text as it is.

        Raises:
            KeyError: there is none, and no default.
        """
        own = self.texts[self.lang]
        for full in (f"{self.scope}.{key}", key):
            if full in own:
                return own[full]
        if default is None:
            raise KeyError(f"no text {key!r} in {self.scope!r} or at the top ({self.lang})")
        return default

    def name(self, kind: str, value: str) -> str:
        """Return what a reader reads for a value of a column."""
        return self.text(f"names.{kind}.{value}", value)

    def names(self, kind: str) -> dict[str, str]:
        """Return what a reader reads for the values of a column."""
        return self.labels(f"names.{kind}") | self.labels(f"{self.scope}.names.{kind}")

    def point_change(self, value: float) -> str:
        """Write a difference of shares: `+0.30 points`."""
        return f"{100 * value:+.2f} {self.text('points')}"

    def point_size(self, value: float) -> str:
        """Write a reach in shares, without a sign: `1.42 points`."""
        return f"{100 * value:.2f} {self.text('points')}"

    def within(self, section: str) -> LabText:
        """Return the same text, for a section below this one."""
        return replace(self, scope=f"{self.scope}.{section}" if self.scope else section)


def lab_text(lab: str, lang: Language) -> LabText:
    """Return the text of a lab."""
    return LabText(lang, load_lab_texts(lab))
