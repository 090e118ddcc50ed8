"""Checking a student's folder: the grader's verdicts, and what people read about them.

The text is data, `text/verdicts/en.yaml` and `zh.yaml`; `pointers.yaml` beside them says where each
mistake points to: a section of the task sheet, source to read. Here facts are filled in, for a
terminal and as JUnit XML.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from drumline.core.json_lines import Message
from drumline.labs.catalogue import LabEntry, task_sheet
from drumline.labs.text import read_texts, read_yaml
from drumline.launcher.grader import GraderProcess, Status, Verdict
from drumline.report.page.translator import Language

TIMEOUT_S = 20.0
"""what one check may take unless told otherwise"""
_ALL = 5  # all checks together may take so many times as long
_PARTS = ("expected", "seen", "belief")
"""of what is said about a mistake: what should have come out, what did, the misunderstanding"""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CheckWatch = Callable[[str | Verdict], None]
"""told the name of a check that begins, and the verdict of one that has ended"""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What all checks of a lab say of a folder."""

    lab: int
    folder: Path
    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether everything is done, and right."""
        return all(verdict.status is Status.PASS for verdict in self.verdicts)

    def count(self, status: Status) -> int:
        """Return how many checks ended so."""
        return sum(verdict.status is status for verdict in self.verdicts)


def check_lab(lab: LabEntry, folder: Path, *, timeout_s: float, watch: CheckWatch) -> CheckResult:
    """Run a lab's checks on a student's folder, in bounded time whatever the code in it does.

    That is `timeout_s` for one check, and five times as long for all together.

    Raises:
        DrumlineError: the checking process itself cannot be started.
    """
    began = time.monotonic()
    limits = {"timeout_s": timeout_s, "total_s": _ALL * timeout_s}
    verdicts = []
    with GraderProcess() as grader:
        for told in grader.ask(lab.number, folder.resolve(), **limits):
            watch(told)
            if isinstance(told, Verdict):
                verdicts.append(told)
    seconds = time.monotonic() - began
    return CheckResult(lab=lab.number, folder=folder, verdicts=tuple(verdicts), seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Where to read about a mistake."""

    lab: int
    """0: it can happen in any"""
    section: int | None = None
    """of the lab's task sheet; None: nothing of the lab's own"""
    read: Sequence[str] = ()
    """symbols of the package: `optim/adam.py:Adam.update`"""


@cache
def load_pointers() -> Mapping[str, Pointer]:
    """Read where each mistake of a student points to; the keys are all mistakes there are."""
    return {
        name: Pointer(lab=lab, **entry)
        for lab, mistakes in read_yaml("verdicts", "pointers.yaml").items()
        for name, entry in mistakes.items()
    }


@dataclass(frozen=True, kw_only=True)
class VerdictExplanation:
    """All that is said about one verdict, in one language."""

    language: Language
    expected: str = ""
    seen: str = ""
    belief: str = ""
    read: tuple[str, ...] = ()
    section: str = ""
    picture: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return it as plain lines, each behind its label."""
        texts = (self.expected, self.seen, self.belief, self.reading())
        colon = lab_label("colon", self.language)
        told = zip((*_PARTS, "read"), texts, strict=True)
        lines = [f"{lab_label(name, self.language)}{colon}{text}" for name, text in told if text]
        return [*lines[:2], *(f"    {line}" for line in self.picture), *lines[2:]]

    def reading(self) -> str:
        """Return where to read, in one line."""
        places = [*self.read, *([self.section] if self.section else [])]
        return lab_label("semicolon", self.language).join(places)


def explain_verdict(verdict: Verdict, language: Language) -> VerdictExplanation:
    """Explain the verdict of one check to a student; one that passed needs no explanation."""
    if verdict.status is Status.PASS:
        return VerdictExplanation(language=language)
    if verdict.status is Status.TO_DO:
        return VerdictExplanation(language=language, seen=_fill("{where}", verdict.facts))
    mistake = verdict.mistake or "raises"
    texts, pointer = read_texts("verdicts")[language], load_pointers()[mistake]
    parts = {part: _fill(texts[f"mistakes.{mistake}.{part}"], verdict.facts) for part in _PARTS}
    if mistake in ("raises", "exits", "died") and "rank" in verdict.facts:
        rank = lab_label("on rank", language).format(rank=verdict.facts["rank"])
        parts["seen"] = rank + parts["seen"]
    section = ""
    if pointer.section is not None:
        named = {"sheet": task_sheet(language), "number": pointer.section}
        section = lab_label("section", language).format(**named)
    place = lab_label("place", language)
    symbols = [symbol.partition(":") for symbol in pointer.read]
    read = tuple(
        place.format(file=file, symbol=name) if name else f"drumline/{file}"
        for file, _, name in symbols
    )
    shown = verdict.picture
    return VerdictExplanation(language=language, **parts, read=read, section=section, picture=shown)


def check_title(check: str, language: Language) -> str:
    """Return the title of a lab's check, which says what it looks at."""
    module, _, what = check.rpartition(".")
    if what == "import":
        return lab_label("import", language).format(file=f"{module}.py")
    return read_texts("verdicts")[language][f"titles.{check}"]


def lab_label(name: str, language: Language) -> str:
    """Return one of the short texts that the `lab` commands print around their results."""
    return read_texts("verdicts")[language][f"labels.{name}"]


def _fill(template: str, facts: Message) -> str:
    """Fill facts in, each as the text formats it: `{off:.4f}`; one that is missing is a dash."""
    return template.format_map(defaultdict(_Missing, facts))


class _Missing:
    def __format__(self, _: str) -> str:
        return "—"


def write_junit(path: Path, result: CheckResult, language: Language) -> None:
    """Write the verdicts of `lab check` as JUnit XML; what is to do counts as skipped."""
    skipped = result.count(Status.TO_DO) + result.count(Status.NOT_RUN)
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
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
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n', encoding="utf-8")


def _add_case(suite: ElementTree.Element, verdict: Verdict, lab: int, language: Language) -> None:
    names = {"classname": f"lab{lab}", "name": verdict.check}
    case = ElementTree.SubElement(suite, "testcase", names, time=f"{verdict.seconds:.3f}")
    if verdict.status is Status.PASS:
        return
    told = explain_verdict(verdict, language)
    if verdict.status is Status.WRONG:
        kind = verdict.mistake or "wrong"
        failure = ElementTree.SubElement(case, "failure", type=kind, message=_clean(told.seen))
        failure.text = _clean("\n".join(told.lines()))
    else:
        title = check_title(verdict.check, language)
        message = _clean(title + lab_label("colon", language) + told.seen)
        ElementTree.SubElement(case, "skipped", message=message)
    if verdict.output:
        ElementTree.SubElement(case, "system-out").text = _clean(verdict.output)


def _clean(text: str) -> str:
    """Leave out what XML cannot hold, such as a terminal's colours."""
    return _NOT_XML.sub("", text)
