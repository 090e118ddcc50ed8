"""`drumline init`: a small project of the user's own, which trains at once and has a test."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

from rich.console import Console

from drumline.cli.app import print_text
from drumline.core.errors import DrumlineError
from drumline.core.files import make_empty_folder

_NO_CODE = ".txt"  # behind .py, so that no tool takes a starter for code of ours


def init_command(folder: Path) -> None:
    """Write the project's files, and say what to do next."""
    starters = sorted(resources.files("drumline.cli").joinpath("project").iterdir(), key=str)
    files = {entry.name.removesuffix(_NO_CODE): entry.read_text("utf-8") for entry in starters}
    make_empty_folder(folder)
    try:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DrumlineError(
            f"cannot write the project to {folder}: {error.strerror}; name another folder"
        ) from error
    console = Console()
    for line in (f"{folder} is ready:", *(f"  {name}" for name in files)):
        print_text(console, line)
    print_text(console, f"next: cd {shlex.quote(str(folder))} && drumline train spec.yaml")
