"""A folder for a student: starter files with holes, the task sheet, a few tests."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from drumline.core.errors import DrumlineError, UsageError
from drumline.labs.catalogue import LABS, Entry, find_lab
from drumline.report.page.translator import Language

MARK = "lab.json"
"""which lab a folder is of, and the language it was started in"""
_CODE = ".py.txt"  # so that no tool takes a file with holes for code of ours


def start_lab(number: int, folder: Path, language: Language) -> list[Path]:
    """Write a lab's starter files into a new or an empty folder; returns them.

    Raises:
        UsageError: there is no such lab, or something is in the folder.
        DrumlineError: the folder cannot be written.
    """
    lab = find_lab(number)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "has files in it" if folder.is_dir() else "is a file"
            raise UsageError(
                f"{folder} {what}, and nothing of yours is overwritten; name a new folder, such as "
                f"{folder}-2"
            )
        folder.mkdir(parents=True, exist_ok=True)
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


def starter_files(lab: Entry) -> dict[str, str]:
    """Return the files that a student gets, by name."""
    source = resources.files("drumline.labs") / "starters" / str(lab.number)
    return {
        entry.name.removesuffix(".txt") if entry.name.endswith(_CODE) else entry.name: (
            entry.read_text(encoding="utf-8")
        )
        for entry in sorted(source.iterdir(), key=lambda entry: entry.name)
        if entry.is_file()
    }


def recognise(folder: Path) -> tuple[Entry, Language]:
    """Say which lab a folder is of: by the mark of `start_lab`, else by the files in it.

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
