"""`LabText`: what a lab's report says, in one language; the text itself is data.

    text/optimizers/en.yaml         of one lab; zh.yaml beside it has the same keys and `{holes}`
    text/optimizers/findings.yaml   of numbers in holes: their rows of findings.csv, and their form
    text/report/en.yaml             of all labs

Keys are dotted paths. A key is looked for in the section of the chapter, in the lab's file, then in
that of all labs: so `columns` and `names` are glossaries that a chapter may override. A number in
the hole `ratio` of `rpc.less` is the finding `rpc.less.ratio`, or `rpc.ratio` of all below `rpc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from drumline.report.page import translator
from drumline.report.page.table import FORMS, NumberFormat, count, plain, times
from drumline.report.page.translator import Filling, Language, Sentence, Texts, Translator

SHARED = "report"
"""the text of all labs"""
_IN_POINTS = {"point_change": "+.2f", "point_gap": "+.1f", "point_size": ".2f"}
"""forms of differences between shares, whose unit is a word: `+0.30 points`"""


@dataclass(frozen=True, kw_only=True)
class FindingSpec:
    """What is known beforehand of a number that is computed from cells of tables."""

    name: str
    """unique in the lab when its holes are filled: `memory of {row.case} over alone`"""
    form: str
    """how it is written: a name that `LabText.form` knows"""
    of: str
    """the tables and columns that it is computed from"""


def read_texts(name: str) -> Texts:
    """Read one of the labs' texts in all languages: `text/<name>/en.yaml`, `zh.yaml`.

    Raises:
        ValueError: the languages differ in their keys or holes, or something is no text.
    """
    return translator.load_texts("drumline.labs", f"text/{name}")


def read_yaml(*path: str) -> Any:
    """Read data of the labs that are no text in two languages: `text/<path>`."""
    file = files("drumline.labs").joinpath("text", *path)
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class LabText(Translator):
    """The text of a lab in one language, as one of its chapters reads it."""

    scope: str = ""
    """the section that is looked into first"""
    findings: Mapping[str, FindingSpec] = field(default_factory=dict, repr=False)

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

    def holes(self, key: str) -> set[str]:
        """Return the names in braces of a text; none where there is no text."""
        return translator.find_holes(self.text(key, ""))

    def fill(self, key: str, holes: Mapping[str, Filling]) -> Sentence:
        """Return a text as a sentence, its holes filled."""
        return translator.fill(self.text(key), holes)

    def name(self, kind: str, value: str) -> str:
        """Return what a reader reads for a value of a column."""
        return self.text(f"names.{kind}.{value}", value)

    def names(self, kind: str) -> dict[str, str]:
        """Return what a reader reads for the values of a column."""
        return self.labels(f"names.{kind}") | self.labels(f"{self.scope}.names.{kind}")

    def finding(self, key: str, hole: str) -> FindingSpec | None:
        """Return what is known of a number in a hole of a text; None: it is no finding."""
        section = f"{self.scope}.{key}"
        while section and f"{section}.{hole}" not in self.findings:
            section = section.rpartition(".")[0]
        return self.findings.get(f"{section}.{hole}")

    def form(self, name: str) -> NumberFormat:
        """Return how numbers are written by the form of that name."""
        if name in _IN_POINTS:
            return lambda value: f"{100 * value:{_IN_POINTS[name]}} {self.text('points')}"
        return _factor if name == "factor" else FORMS[name]

    def within(self, section: str) -> LabText:
        """Return the same text, for a section below this one."""
        return replace(self, scope=f"{self.scope}.{section}" if self.scope else section)


def _factor(value: float) -> str:
    """Write a factor that may be large: `12 300×`."""
    return times(value) if value < 1000 else f"{count(float(plain(value)))}×"


@cache
def lab_text(lab: str, lang: Language) -> LabText:
    """Read the text of a lab's report, with what all labs share, and its findings."""
    shared, own = read_texts(SHARED), read_texts(lab)
    entries = {} if lab == SHARED else read_yaml(lab, "findings.yaml")
    return LabText(
        lang,
        {each: {**shared[each], **own[each]} for each in Language},
        findings={key: FindingSpec(**entry) for key, entry in entries.items()},
    )
