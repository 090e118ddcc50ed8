"""Run the commands of a page of the documentation, and put what they print in the page.

    python scripts/refresh_docs.py docs/en/benchmarks.md        # and its Chinese twin

Only lines that the page shows already are replaced; a command whose output has another shape than
the page shows is named, and left for a person to write down. Run it on a machine that is idle.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "docs"))

from doc_output import MismatchError, align  # noqa: E402
from doc_pages import Command, blocks_of  # noqa: E402
from doc_shell import PageShell  # noqa: E402


def main(page: Path) -> None:
    """Run a page in an empty folder, and write the page and its twin again."""
    blocks = [block for block in blocks_of(page) if "ec2" not in block.how]
    with tempfile.TemporaryDirectory() as folder:
        shell = PageShell(Path(folder, "proj"), dict(os.environ))
        for fault in shell.run(blocks):
            print(fault, file=sys.stderr)
    for command, output in shell.printed:
        replace(page, command, output)


def replace(page: Path, command: Command, output: str) -> None:
    """Put a command's output into the page and its twin, where they show it."""
    try:
        lines = align(command.shown, output.splitlines()) if command.shown else []
    except MismatchError as fault:
        print(f"{command.text}: not replaced\n{fault}", file=sys.stderr)
        return
    for file in {page, Path(str(page).replace("/en/", "/zh/").replace("ME.md", "ME.zh-CN.md"))}:
        text = file.read_text()
        shown, printed = "\n".join(command.shown), "\n".join(lines)
        if shown and shown != printed and shown in text:
            file.write_text(text.replace(shown, printed))
            print(f"{file.relative_to(ROOT)}: {command.bare}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
