"""JUnit XML for graders: a test case for each check."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from drumline.core.language import Language
from drumline.labs.verdict import Result, Status, Verdict
from drumline.labs.wording import explain, title_of, word

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path, result: Result, language: Language) -> None:
    """Write a result where graders' tools read it; what is to do counts as skipped."""
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
        _add(suite, verdict, result.lab, language)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n', encoding="utf-8")


def _add(suite: ElementTree.Element, verdict: Verdict, lab: int, language: Language) -> None:
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
        ElementTree.SubElement(
            case,
            "skipped",
            message=_clean(title_of(verdict.check, language) + word("colon", language) + told.seen),
        )
    if verdict.output:
        ElementTree.SubElement(case, "system-out").text = _clean(verdict.output)


def _clean(text: str) -> str:
    """Leave out what XML cannot hold, such as a terminal's colours."""
    return _FORBIDDEN.sub("", text)
