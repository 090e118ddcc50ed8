"""A report on disk: the page, its text, its figures, its data, and a manifest that vouches for all.

<folder>/
    report.html     everything in one file
    report.md       the same as text
    words.md        the author's own words: made once, never overwritten
    figures/        NAME.png, .svg, .pdf
    data/           NAME.csv: every number of the page
    manifest.json   what was run, on what, and the sha256 of every file above but words.md

The audits tell whether it is still what the program wrote. The page carries for each number which
cell of which CSV file it is (`<data data-sheet=…>`): it is read as a browser would, and each number
is held against the file.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from drumline import __version__
from drumline.core.errors import RunDirError, UsageError
from drumline.core.files import hash_file, write_atomic
from drumline.report.page.blocks import Report
from drumline.report.page.render import render_html, render_markdown
from drumline.report.page.translator import Language, page_texts
from drumline.report.plots import FORMATS, write_figure

FORMAT = 1
"""of the manifest: raised when an older program could not read it"""
MANIFEST, WORDS, TEXT, PAGE = "manifest.json", "words.md", "report.md", "report.html"
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_SENTENCES = ("p", "li")
_MOST = 5
"""wrong numbers that are told one by one, of each CSV file"""

Told = Callable[[str], None]


def write_report(
    report: Report, folder: Path, facts: Mapping[str, object], *, tell: Told = lambda _: None
) -> Path:
    """Write a report's files, and return the page; those of an older one are replaced, no others.

    `facts` is what the manifest says besides the files; `tell` is called with each figure's name.

    Raises:
        UsageError: something else lies there.
        RunDirError: a file cannot be written.
    """
    pictures = report.pictures()
    figures = [[f"figures/{one.name}.{end}" for end in FORMATS] for one in pictures]
    names = [*(table.file for table in report.tables), *itertools.chain(*figures), TEXT, PAGE]
    check_place(folder, facts.get("lab"), names)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = {"format": FORMAT, "drumline": __version__, "made": made, "lang": report.lang}
    manifest = {**about, **facts}
    _make_room(folder, manifest, names)
    for table in report.tables:
        write_atomic(folder / table.file, table.to_csv())
    for picture, files in zip(pictures, figures, strict=True):
        tell(picture.name)
        write_figure(picture.draw, [folder / file for file in files], report.lang)
    write_atomic(folder / TEXT, render_markdown(report))
    write_atomic(folder / PAGE, render_html(report, version=__version__, made=made))
    _write_manifest(folder, manifest, {name: hash_file(folder / name) for name in sorted(names)})
    return folder / PAGE


def _write_manifest(folder: Path, facts: Mapping[str, object], files: Mapping[str, str]) -> None:
    document = json.dumps({**facts, "files": files}, indent=2, ensure_ascii=False)
    write_atomic(folder / MANIFEST, document + "\n")


def check_place(folder: Path, lab: object, names: Iterable[str] = (TEXT, PAGE)) -> None:
    """See that a report written to a folder replaces only an older one of the same kind.

    `lab` is the lab whose it is (None: a page about runs), `names` the files that it will be.

    Raises:
        UsageError: the folder has a report of another kind, or a file of that name which is no
            report's, such as the manifest of a run.
    """
    manifest = _found(folder)
    if isinstance(manifest, dict) and "drumline" in manifest:
        if (there := manifest.get("lab")) != lab:
            what = "a page about runs" if there is None else f"the report of lab {there}"
            raise UsageError(f"{folder} holds {what}, which stays; name another folder with --out")
        ours = manifest.get("files")
        ours = ours if isinstance(ours, dict) else names
    elif isinstance(manifest, dict):
        names, ours = [MANIFEST], []
    else:  # lost or damaged: then the page tells
        ours = names if "drumline" in _read(folder / PAGE) else []
    theirs = [name for name in names if name not in ours and (folder / name).exists()]
    if theirs:
        raise UsageError(
            f"{folder} has a {theirs[0]} that is no report's, and nothing of yours is overwritten; "
            f"name a new folder with --out"
        )


def _found(folder: Path) -> Any:
    """Read the manifest that lies in a folder, whoever wrote it; None: none, or no JSON."""
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_own_words(folder: Path, lang: Language) -> str:
    """Read a report author's own words; where there is no such file yet, one is made.

    Raises:
        RunDirError: it cannot be read, or made.
    """
    file = folder / WORDS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_atomic(file, f"<!-- {page_texts(lang).text('page.own_words_file')} -->\n")
        return _COMMENT.sub("", file.read_text(encoding="utf-8")).strip()
    except UnicodeDecodeError:
        raise RunDirError(f"{file} is no text in UTF-8; save it as such") from None
    except OSError as error:
        raise RunDirError(
            f"cannot read or write {file}: {error.strerror}; name another folder with --out"
        ) from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a report's manifest.

    Raises:
        UsageError: there is no report, or one of another version.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} holds no report: there is no {MANIFEST}; name the folder that "
            f"`drumline lab run` wrote, e.g. labs/2"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is damaged ({error}); make the report again") from None
    facts: dict[str, Any] = manifest if isinstance(manifest, dict) else {"drumline": "?"}
    found = facts.get("format")
    if found != FORMAT or not isinstance(facts.get("files"), dict):
        raise UsageError(
            f"{file} has format {found!r}, this program reads {FORMAT}; make the report again with "
            f"this version, or read it with drumline {facts.get('drumline', 'of its time')}"
        )
    return facts


def _make_room(folder: Path, facts: Mapping[str, object], names: list[str]) -> None:
    """Make the folders of figures and data, without those that an older report's manifest names.

    The new manifest names what is about to be written, still without its sha256: where writing is
    cut short, the next report knows what is of this one.
    """
    manifest = _found(folder)
    older = manifest.get("files") if isinstance(manifest, dict) else None
    try:
        for name in ("figures", "data"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in older if isinstance(older, dict) else ():
            if Path(name).parent in (Path("figures"), Path("data")):
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunDirError(
            f"cannot write the report to {folder}: {error.strerror}; name another --out"
        ) from None
    _write_manifest(folder, facts, dict.fromkeys(names, ""))


@dataclass(frozen=True, kw_only=True)
class Cited:
    """A number on the page."""

    value: str
    table: str
    row: int
    column: str
    text: str
    sentence: str = field(default="", compare=False)
    """the paragraph or the item of a list that it stands in"""


class _Reader(HTMLParser):
    """Collects the numbers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Cited] = []
        self._open: dict[str, str] | None = None
        self._text = ""
        self._sentence = ""
        self._first = 0
        """how many numbers there were before the paragraph"""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SENTENCES:
            self._sentence, self._first = "", len(self.found)
        if tag == "data":
            self._open = {name: value or "" for name, value in attrs}
            self._text = ""

    def handle_data(self, data: str) -> None:
        self._sentence += data
        if self._open is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag in _SENTENCES:
            self.found[self._first :] = [
                replace(cited, sentence=self._sentence) for cited in self.found[self._first :]
            ]
        if tag == "data" and self._open is not None:
            row = self._open.get("data-row", "")
            self.found.append(
                Cited(
                    value=self._open.get("value", ""),
                    table=self._open.get("data-sheet", ""),
                    row=int(row) if row.isdecimal() else -1,
                    column=self._open.get("data-column", ""),
                    text=self._text,
                )
            )
            self._open = None


def read_citations(page: str) -> list[Cited]:
    """Return every number of a report's page that names its table's cell."""
    reader = _Reader()
    reader.feed(page)
    return reader.found


def audit_files(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Give a sentence for each file of a report that is not as it was written."""
    for name, expected in manifest["files"].items():
        file = folder / name
        try:
            found = hash_file(file)
        except FileNotFoundError:
            yield f"{name} is missing"
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}"
        else:
            if not expected:
                yield f"{name} is of a report that was never finished; make it again"
            elif found != expected:
                yield f"{name} was changed after it was written"


def audit_numbers(folder: Path) -> Iterator[str]:
    """Give a sentence for each number of a report's page that its CSV file does not have."""
    tables: dict[str, list[dict[str, str]]] = {}
    wrong: Counter[str] = Counter()
    for cited in read_citations(_read(folder / PAGE)):
        if cited.table not in tables:
            tables[cited.table] = _read_csv(folder / "data" / f"{cited.table}.csv")
        rows = tables[cited.table]
        cell = rows[cited.row].get(cited.column) if 0 <= cited.row < len(rows) else None
        if cell == cited.value:
            continue
        wrong[cited.table] += 1
        if wrong[cited.table] > _MOST:
            continue
        if cell is None:
            yield f"{PAGE} says {cited.text!r}, but {cited.table}.csv has no such cell"
        else:
            yield (
                f"{PAGE} says {cited.text!r} ({cited.value}), but {cited.table}.csv has {cell} in "
                f"row {cited.row + 1}, {cited.column}"
            )
    for table, count in wrong.items():
        if count > _MOST:
            yield f"{count - _MOST} more numbers of {PAGE} are not those in {table}.csv"


def audit_texts(folder: Path, report: Report) -> Iterator[str]:
    """Give a sentence where a report's page says other numbers, or of them, than its runs."""
    theirs = read_citations(_read(folder / PAGE))
    ours = read_citations(render_html(report, version="", made="", draws=False))
    for there, here in zip(theirs, ours, strict=False):
        if there != here:
            yield (
                f"{PAGE} says {there.text!r} where the runs give {here.text!r} ({here.table}.csv, "
                f"row {here.row + 1}, {here.column})"
            )
            return
        if there.sentence != here.sentence:
            yield f"{PAGE} says {there.sentence!r} where the runs give {here.sentence!r}"
            return
    if len(theirs) != len(ours):
        yield f"{PAGE} has {len(theirs)} numbers where the runs give {len(ours)}"


def _read_csv(file: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(_read(file), newline="")))
    except csv.Error:
        return []


def _read(file: Path) -> str:
    """Read a file, whatever was done to it; one that cannot be read has nothing in it."""
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""
