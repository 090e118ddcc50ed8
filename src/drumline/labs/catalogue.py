"""The four labs: what they are about, and folders for students with files to fill in."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from drumline.core.errors import DrumlineError, UsageError
from drumline.core.files import make_empty_folder
from drumline.labs.text import read_texts, read_yaml
from drumline.report.page.blocks import Code
from drumline.report.page.translator import Language

MARK = "lab.json"
"""which lab a folder is of, and the language it was started in"""
_NO_CODE = ".txt"  # behind .py, so that no tool takes a file with holes for code of ours
_PRINCIPLE = re.compile(r"(\d+\. )?(Principle|原理)")
"""how the heading of that section begins"""


@dataclass(frozen=True)
class LabEntry:
    """One lab, as the list has it."""

    number: int
    name: str
    package: str
    """what runs it and writes its report, below `drumline.labs`, and its text, below `text`"""
    modules: tuple[str, ...]
    """files with holes, without their .py"""

    def text(self, what: Literal["title", "about", "needs"], language: Language) -> str:
        """Return what it is called, what a student does in it, or what its checks start."""
        return read_texts("catalogue")[language][f"{self.name}.{what}"]


LABS: tuple[LabEntry, ...] = (
    LabEntry(1, "optimizers", "optimizers", ("optimizers", "training")),
    LabEntry(2, "aggregation", "communication", ("aggregation", "timing")),
    LabEntry(3, "data-parallel", "data_parallel", ("samplers", "replicas")),
    LabEntry(4, "model-parallel", "model_parallel", ("two_parts",)),
)


def find_lab(number: int) -> LabEntry:
    """Return the catalogue's entry of a lab by its number.

    Raises:
        UsageError: there is no such lab.
    """
    for lab in LABS:
        if lab.number == number:
            return lab
    raise UsageError(f"there is no lab {number}; expected 1, 2, 3 or 4 (drumline lab list)")


def task_sheet(language: Language) -> str:
    """Return the file name of the task sheet that every lab gives to students."""
    return read_texts("catalogue")[language]["task"]


def _starters(lab: LabEntry) -> Traversable:
    return resources.files("drumline.labs").joinpath("starters", str(lab.number))


def read_principle(entry: LabEntry, language: Language) -> str:
    """Return the part of a lab's task sheet that says why things work."""
    sheet = _starters(entry).joinpath(task_sheet(language)).read_text(encoding="utf-8")
    sections = [section for section in sheet.split("\n## ") if _PRINCIPLE.match(section)]
    return "\n".join(section.partition("\n")[2] for section in sections).strip()


def read_code(entry: LabEntry) -> list[Code]:
    """Return the source that a lab's experiments really use, in order."""
    symbols = [symbol.partition(":") for symbol in read_yaml("code.yaml")[entry.number]]
    return [excerpt(file, name) for file, _, name in symbols]


def excerpt(path: str, symbol: str) -> Code:
    """Cut code for a report's page out of a module: `comm/ring.py`, `all_reduce` or `Adam.step`.

    Raises:
        LookupError: the module does not define it.
    """
    text = resources.files("drumline").joinpath(path).read_text(encoding="utf-8")
    found: Any = ast.parse(text)
    for name in symbol.split("."):
        found = next((node for node in found.body if getattr(node, "name", "") == name), None)
        if found is None:
            raise LookupError(f"{path} defines no {symbol}")
    first = min(node.lineno for node in (found, *found.decorator_list))
    lines = text.splitlines()[first - 1 : found.end_lineno]
    return Code(path=path, symbol=symbol, line=first, text=textwrap.dedent("\n".join(lines)))


def start_lab(number: int, folder: Path, language: Language) -> list[Path]:
    """Write a lab's starter files into a new or an empty folder; returns them.

    Raises:
        UsageError: there is no such lab, or something is in the folder.
        DrumlineError: the folder cannot be written.
    """
    lab = find_lab(number)
    make_empty_folder(folder)
    try:
        files = starter_files(lab)
        files[MARK] = json.dumps({"lab": number, "language": str(language)}) + "\n"
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DrumlineError(
            f"cannot write the files of lab {number} to {folder}: {error.strerror}; name a folder "
            f"that you can write to"
        ) from error
    return [folder / name for name in files]


def starter_files(lab: LabEntry) -> dict[str, str]:
    """Return the starter files that a student of a lab gets, by name."""
    entries = sorted(_starters(lab).iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(_NO_CODE): entry.read_text(encoding="utf-8")
        for entry in entries
        if entry.is_file()
    }


def recognise_lab(folder: Path) -> tuple[LabEntry, Language]:
    """Say which lab a student's folder is of: by the mark of `start_lab`, else by its files.

    Raises:
        UsageError: there is no such folder, or it is of no lab.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file; name the folder it is in: {folder.parent}")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; make one: drumline lab start 1 {folder}")
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        return find_lab(int(mark["lab"])), Language(mark["language"])
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        pass  # lost or changed; the files tell, too
    for lab in LABS:
        if any((folder / f"{module}.py").is_file() for module in lab.modules):
            return lab, Language.EN
    names = ", ".join(f"{module}.py" for lab in LABS for module in lab.modules)
    raise UsageError(
        f"{folder} is no lab's folder: it has neither {MARK} nor one of {names}; make one: "
        f"drumline lab start 1 my-lab"
    )
