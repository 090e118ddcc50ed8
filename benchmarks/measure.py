"""Measuring: what all benchmarks share. Turns, ratios, tables, the machine.

Rivals take turns within each round, another one first each time, so that a busy moment of the
machine hits all of them. A ratio is taken within its round; what is reported is the median over the
rounds and the quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("drumline", "torch", "numpy", "pytorch-lightning", "accelerate")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: ours over theirs in one case, below 1 where ours takes less time."""

    case: str
    ours: str
    rival: str
    ours_median: float
    rival_median: float
    unit: str
    ratio: float
    low: float
    """first quartile of the ratios"""
    high: float
    """third quartile of the ratios"""
    rounds: int
    extra: dict[str, float] = field(default_factory=dict)
    """further columns by heading; a row may lack some"""


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Name whose turn it is: everybody once a round, another one first in each round."""
    for number in range(rounds):
        first = number % len(names)
        yield from (*names[first:], *names[:first])


def compare(
    times: Mapping[str, Sequence[float]],
    ours: str,
    rival: str,
    *,
    case: str,
    unit: str,
    extra: dict[str, float] | None = None,
) -> Row:
    """Compare two rivals round by round; `times` are in `unit`."""
    mine, theirs = times[ours], times[rival]
    low, middle, high = quartiles([a / b for a, b in zip(mine, theirs, strict=True)])
    return Row(
        case=case,
        ours=ours,
        rival=rival,
        ours_median=round(statistics.median(mine), 4),
        rival_median=round(statistics.median(theirs), 4),
        unit=unit,
        ratio=round(middle, 4),
        low=round(low, 4),
        high=round(high, 4),
        rounds=len(mine),
        extra=extra or {},
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return first quartile, median and third quartile; all lie within the values."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def arguments(about: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Start a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--rounds", type=_positive, default=rounds, help=f"default: {rounds}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the table here, too")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def report(title: str, note: str, rows: Sequence[Row], path: Path | None) -> None:
    """Print the table; write it to `path`, if there is one, with machine, versions and command."""
    print(f"{title}\n{note}")
    for cells in (_headings(rows), *(_cells(row, rows) for row in rows)):
        print("  ".join(f"{cell:<28}" for cell in cells[:3]), *(f"{c:>13}" for c in cells[3:]))
    _write(path, title, note, rows=[asdict(row) for row in rows])


def report_table(
    title: str, note: str, headings: Sequence[str], rows: Sequence[Sequence[str]], path: Path | None
) -> None:
    """Print a table that has no ratios, and write it as `report` does."""
    print(f"{title}\n{note}")
    for cells in (headings, *rows):
        print("  ".join(f"{cell:<14}" for cell in cells))
    _write(path, title, note, headings=list(headings), cells=[list(row) for row in rows])


def _write(path: Path | None, title: str, note: str, **table: Any) -> None:
    if path is None:
        return
    document = {
        "title": title,
        "note": note,
        "command": shlex.join(["python", *sys.argv]),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        **table,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def markdown(document: dict[str, Any]) -> str:
    """Turn what `report` has written into a section of Markdown."""
    machine = document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"## {document['title']}",
        "",
        document["note"],
        "",
        *_markdown_table(document),
        "",
        f"`{document['command']}`, {document['measured']}, load {machine['load_1min']:.1f} at the "
        f"end.  ",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {versions}.",
    ]
    return "\n".join(lines) + "\n"


def _markdown_table(document: dict[str, Any]) -> list[str]:
    headings, cells, left = document.get("headings", []), document.get("cells", []), 1
    if "rows" in document:
        rows = [Row(**row) for row in document["rows"]]
        headings, cells, left = _headings(rows), [_cells(row, rows) for row in rows], 3
    aligned = [":--"] * left + ["--:"] * (len(headings) - left)
    return [_markdown_line(line) for line in (headings, aligned, *cells)]


def _headings(rows: Sequence[Row]) -> list[str]:
    known = ("case", "this", "over", "ratio", "quartiles", "this takes", "that takes", "rounds")
    return [*known, *_extras(rows)]


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    return [
        row.case,
        row.ours,
        row.rival,
        f"{row.ratio:.3f}",
        f"{row.low:.3f}–{row.high:.3f}",
        f"{row.ours_median:.4g} {row.unit}",
        f"{row.rival_median:.4g} {row.unit}",
        str(row.rounds),
        *(f"{row.extra[name]:.3g}" if name in row.extra else "" for name in _extras(rows)),
    ]


def _extras(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.extra))


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def describe_machine() -> dict[str, Any]:
    """Say on what and with what was measured."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_1min": os.getloadavg()[0],
        "versions": {"python": platform.python_version()} | _versions(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown CPU"


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
