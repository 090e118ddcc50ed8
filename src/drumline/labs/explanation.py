"""What people read about a verdict, in English or Chinese: on a terminal, and as JUnit XML.

The text is data, `text/verdicts.<language>.yaml`; `text/verdicts.yaml` says where each mistake
points to: a section of the task sheet, source to read. Here the facts of a verdict are filled in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import yaml

from drumline.core.language import Language
from drumline.labs.catalogue import TASK
from drumline.labs.check import Result, Status, Verdict

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # seven times as fast
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, kw_only=True)
class MistakeText:
    """The explanation of one mistake, before the facts are filled in."""

    expected: str
    seen: str
    belief: str
    """the misunderstanding behind it"""


@dataclass(frozen=True, kw_only=True)
class VerdictText:
    """Everything that is said about verdicts in one language; `{name}` stands for a fact."""

    labels: Mapping[str, str]
    titles: Mapping[str, str]
    """what each check looks at"""
    mistakes: Mapping[str, MistakeText]


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Where to read about a mistake."""

    lab: int
    """0: it can happen in any"""
    section: int | None = None
    """of the lab's task sheet; None: nothing of the lab's own"""
    read: tuple[str, ...] = ()
    """symbols of the package: `optim/adam.py:Adam.update`"""


@cache
def load_text(language: Language) -> VerdictText:
    """Read the text of a language.

    Raises:
        ValueError: a key is missing or unknown, or something is not text.
    """
    content = _read_yaml(f"verdicts.{language}.yaml")
    if content.keys() != {"labels", "titles", "mistakes"}:
        raise ValueError(f"verdicts.{language}.yaml: unexpected keys {sorted(content)}")
    return VerdictText(
        labels=_strings(content["labels"]),
        titles=_strings(content["titles"]),
        mistakes=MappingProxyType(
            {name: MistakeText(**_strings(text)) for name, text in content["mistakes"].items()}
        ),
    )


@cache
def load_pointers() -> Mapping[str, Pointer]:
    """Read where each mistake points to; its keys are all mistakes that there are."""
    return MappingProxyType(
        {
            name: Pointer(lab=lab, section=entry.get("section"), read=tuple(entry.get("read", ())))
            for lab, mistakes in _read_yaml("verdicts.yaml").items()
            for name, entry in mistakes.items()
        }
    )


def _read_yaml(name: str) -> dict[Any, Any]:
    text = files("drumline.labs").joinpath("text", name).read_text(encoding="utf-8")
    content: dict[Any, Any] = yaml.load(text, Loader=_LOADER)
    return content


def _strings(section: Mapping[str, object]) -> Mapping[str, str]:
    for name, text in section.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"{name!r}: expected text, got {text!r}; quote it")
    return MappingProxyType({name: str(text) for name, text in section.items()})


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All that is said about one verdict, in one language."""

    language: Language
    expected: str = ""
    seen: str = ""
    belief: str = ""
    read: tuple[str, ...] = ()
    section: str = ""
    picture: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return it as plain lines, each behind its label."""
        told = [
            ("expected", self.expected),
            ("seen", self.seen),
            ("belief", self.belief),
            ("read", self.reading()),
        ]
        colon = label("colon", self.language)
        lines = [f"{label(name, self.language)}{colon}{text}" for name, text in told if text]
        return [*lines[:2], *(f"    {line}" for line in self.picture), *lines[2:]]

    def reading(self) -> str:
        """Return where to read, in one line."""
        places = [*self.read, *([self.section] if self.section else [])]
        return label("semicolon", self.language).join(places)


def explain(verdict: Verdict, language: Language) -> Explanation:
    """Say what a verdict means; a check that passed needs no explanation."""
    if verdict.status is Status.PASS:
        return Explanation(language=language)
    if verdict.status is Status.TO_DO:
        return Explanation(language=language, seen=_fill("{where}", verdict.facts))
    mistake = verdict.mistake or "raises"
    text = load_text(language).mistakes[mistake]
    pointer = load_pointers()[mistake]
    section = ""
    if pointer.section is not None:
        table = TASK.within(language)
        section = label("section", language).format(table=table, number=pointer.section)
    return Explanation(
        language=language,
        expected=_fill(text.expected, verdict.facts),
        seen=_rank_prefix(verdict, language) + _fill(text.seen, verdict.facts),
        belief=_fill(text.belief, verdict.facts),
        read=tuple(_format_symbol(symbol, language) for symbol in pointer.read),
        section=section,
        picture=verdict.picture,
    )


def title_of(check: str, language: Language) -> str:
    """Say what a check looks at."""
    module, _, what = check.rpartition(".")
    if what == "import":
        return label("import", language).format(file=f"{module}.py")
    return load_text(language).titles[check]


def label(name: str, language: Language) -> str:
    """Return one of the short texts around the sentences."""
    return load_text(language).labels[name]


def _format_symbol(symbol: str, language: Language) -> str:
    file, _, name = symbol.partition(":")
    return label("place", language).format(file=file, symbol=name) if name else f"drumline/{file}"


def _rank_prefix(verdict: Verdict, language: Language) -> str:
    if verdict.mistake in ("raises", "exits", "died") and "rank" in verdict.facts:
        return label("on rank", language).format(rank=verdict.facts["rank"])
    return ""


def _fill(template: str, facts: Mapping[str, Any]) -> str:
    """Fill facts in, each as the text formats it: `{off:.4f}`."""
    return template.format_map(_Facts(facts))


class _Facts(dict[str, Any]):
    """Facts by name; one that is missing shows as a dash instead of ending the report."""

    def __missing__(self, name: str) -> _Missing:
        return _Missing()


class _Missing:
    def __format__(self, _: str) -> str:
        return "—"


def write_junit(path: Path, result: Result, language: Language) -> None:
    """Write a result as JUnit XML, a test case for each check; what is to do counts as skipped."""
    skipped = result.count(Status.TO_DO) + result.count(Status.NOT_RUN)
    suite = ElementTree.Element(
        "testsuite",
        name=f"drumline lab {result.lab}",
        tests=str(len(result.verdicts)),
        failures=str(result.count(Status.WRONG)),
        errors="0",
        skipped=str(skipped),
        time=f"{result.seconds:.3f}",
    )
    for verdict in result.verdicts:
        _add_case(suite, verdict, result.lab, language)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n', encoding="utf-8")


def _add_case(suite: ElementTree.Element, verdict: Verdict, lab: int, language: Language) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"lab{lab}",
        name=verdict.check,
        time=f"{verdict.seconds:.3f}",
    )
    if verdict.status is Status.PASS:
        return
    told = explain(verdict, language)
    if verdict.status is Status.WRONG:
        kind = verdict.mistake or "wrong"
        failure = ElementTree.SubElement(case, "failure", type=kind, message=_clean(told.seen))
        failure.text = _clean("\n".join(told.lines()))
    else:
        title = title_of(verdict.check, language)
        message = _clean(title + label("colon", language) + told.seen)
        ElementTree.SubElement(case, "skipped", message=message)
    if verdict.output:
        ElementTree.SubElement(case, "system-out").text = _clean(verdict.output)


def _clean(text: str) -> str:
    """Leave out what XML cannot hold, such as a terminal's colours."""
    return _NOT_XML.sub("", text)
