"""Reading the documentation: its pages, their fenced blocks, and what shell commands are in them.

A comment in front of a block says how the block is run:

    <!-- not run: why -->      it cannot be run here; the test lists it
    <!-- run: slow -->         takes long: `make test` leaves it out
    <!-- run: exit 1 -->       its last command ends with this exit code
    <!-- run: nodes -->        needs simulated nodes; `twin`: with SSH servers
    <!-- run: ec2 -->          runs against the stand-in for EC2

Several can stand together, with commas. A block with a title (```yaml title="spec.yaml"```) is a
file that the page's commands find in their folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LANGUAGES = ("en", "zh")
SHELLS = ("console", "bash")
_FENCE = re.compile(
    r"(?P<comments>(?:^[ ]*<!--[^\n]*-->[ ]*\n\s*?)*)"
    r"^(?P<indent>[ ]*)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a block, and what the page shows of its output."""

    text: str
    shown: tuple[str, ...] = ()

    @property
    def essence(self) -> str:
        """The command on one line, without its comment."""
        text = re.sub(r"\s+#\s.*$", "", self.text, flags=re.MULTILINE)
        return re.sub(r"\s+", " ", text.replace("\\\n", " ")).strip()

    @property
    def bare(self) -> str:
        """The same without the option that chooses a language."""
        return self.essence.replace(" --lang zh", "")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    body: str
    how: frozenset[str] = field(default_factory=frozenset)
    not_run: str = ""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELLS and not self.title

    @property
    def exit_code(self) -> int:
        codes = [int(word.split()[1]) for word in self.how if word.startswith("exit ")]
        return codes[0] if codes else 0

    @property
    def commands(self) -> list[Command]:
        return list(_commands(self)) if self.is_shell else []


def blocks_of(page: Path) -> list[Block]:
    """Return all fenced blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        info = match["info"].strip()
        title = re.search(r'title="([^"]*)"', info)
        notes = _COMMENT.findall(match["comments"])
        how = [note[4:] for note in notes if note.startswith("run:")]
        reasons = [note[8:].strip() for note in notes if note.startswith("not run:")]
        indent = len(match["indent"])
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start("indent")) + 1,
                language=info.split()[0] if info else "",
                title=title[1] if title else "",
                body="".join(line[indent:] or "\n" for line in match["body"].splitlines(True)),
                how=frozenset(word.strip() for line in how for word in line.split(",")),
                not_run=reasons[0] if reasons else "",
            )
        )
    return found


def pages(language: str) -> dict[str, Path]:
    """Return the pages of one language by a name that both languages share."""
    readme = "README.md" if language == "en" else "README.zh-CN.md"
    found = {"README": ROOT / readme}
    folder = DOCS / language
    return found | {path.stem: path for path in sorted(folder.glob("*.md"))}


def _commands(block: Block):
    lines = block.body.splitlines()
    if block.language == "bash":
        yield from _plain_commands(lines)
        return
    text: list[str] = []
    shown: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            if text:
                yield Command(text="\n".join(text), shown=tuple(shown))
            text, shown = [line[2:]], []
        elif text and text[-1].endswith("\\") and not shown:
            text.append(line)
        else:
            assert text, f"{block.where}: output in front of the first command"
            shown.append(line)
    if text:
        yield Command(text="\n".join(text), shown=tuple(shown))


def _plain_commands(lines: list[str]):
    text: list[str] = []
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text.append(line)
        if not line.endswith("\\"):
            yield Command(text="\n".join(text))
            text = []
