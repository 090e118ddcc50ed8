"""A report on disk: the page, its text, its figures, its data, and a manifest that vouches for all.

<folder>/
    report.html     everything in one file
    report.md       the same as text
    words.md        the author's own words: made once, never overwritten
    figures/        NAME.png, .svg, .pdf
    data/           NAME.csv: every number of the page
    manifest.json   what was run, on what, and the sha256 of every file above but words.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drumline import __version__
from drumline.core.errors import RunDirError, UsageError
from drumline.core.rundir import write_atomic
from drumline.report.page.blocks import Report
from drumline.report.page.html import render_html
from drumline.report.page.markdown import render_markdown
from drumline.report.page.picture import write_files
from drumline.report.page.prose import Tongue

FORMAT = 1
"""of the manifest: raised when an older program could not read it"""
MANIFEST, WORDS, PAGE = "manifest.json", "words.md", "report.html"

Told = Callable[[str], None]


def write_report(
    report: Report, folder: Path, facts: Mapping[str, Any], *, tell: Told = lambda _: None
) -> Path:
    """Write a report's files; those of an older one at that place are replaced.

    Args:
        report: what it says.
        folder: made where it is not there.
        facts: what the manifest says besides the files.
        tell: called with each figure's name before it is drawn.

    Returns:
        The page.

    Raises:
        RunDirError: a file cannot be written.
    """
    written: list[Path] = []
    for name in ("figures", "data"):
        _fresh(folder / name)
    for sheet in report.sheets:
        file = folder / "data" / f"{sheet.name}.csv"
        write_atomic(file, sheet.to_csv())
        written.append(file)
    for picture in report.pictures():
        tell(picture.name)
        written += write_files(picture, folder / "figures", report.lang)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    texts = {
        "report.md": render_markdown(report),
        PAGE: render_html(report, version=__version__, made=made),
    }
    for name, text in texts.items():
        write_atomic(folder / name, text)
        written.append(folder / name)
    manifest = {
        "format": FORMAT,
        "drumline": __version__,
        "made": made,
        "lang": report.lang,
        **facts,
        "files": {str(file.relative_to(folder)): hash_file(file) for file in sorted(written)},
    }
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return folder / PAGE


def read_words(folder: Path, say: Tongue) -> str:
    """Read the author's own words; where there is no such file yet, an empty one is made.

    Raises:
        RunDirError: it cannot be read, or made.
    """
    file = folder / WORDS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_atomic(file, _invitation(say))
        return _without_comments(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise RunDirError(f"{file} is no text in UTF-8; save it as such") from None
    except OSError as error:
        raise RunDirError(
            f"cannot read {file}: {error.strerror}; name another folder with --out"
        ) from None


def _invitation(say: Tongue) -> str:
    return say.pick(
        "<!-- Your own analysis, as Markdown: it becomes a part of the report, and is kept when "
        "the report is made again. -->\n",
        "<!-- 在此用 Markdown 写下你自己的分析：它会成为报告的一部分，重新生成报告时会保留。 -->\n",
    )


def _without_comments(text: str) -> str:
    while "<!--" in text and "-->" in text[text.index("<!--") :]:
        start = text.index("<!--")
        text = text[:start] + text[text.index("-->", start) + 3 :]
    return text.strip()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a report's manifest.

    Raises:
        UsageError: there is no report, or one of another version.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{folder} holds no report: there is no {MANIFEST}; name the folder that "
            f"`drumline lab run` wrote, e.g. labs/2"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is damaged ({error}); make the report again") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT or not isinstance(manifest.get("files"), dict):
        raise UsageError(
            f"{file} has format {found!r}, this program reads {FORMAT}; make the report again with "
            f"this version, or read it with drumline {_maker(manifest)}"
        )
    return dict(manifest)


def _maker(manifest: Any) -> str:
    return str(manifest.get("drumline", "of its time")) if isinstance(manifest, dict) else "?"


def hash_file(file: Path) -> str:
    """Return a file's sha256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fresh(folder: Path) -> None:
    """Make a folder of ours, without the files of an older report."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.is_file():
                file.unlink()
    except OSError as error:
        raise RunDirError(
            f"cannot write the report to {folder.parent}: {error.strerror}; name another --out"
        ) from None
