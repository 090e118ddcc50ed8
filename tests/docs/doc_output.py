"""Comparing what a page shows with what a command printed: the shape, not the numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

ELLIPSIS = "…"
# What differs from run to run, in this order.
_MASKS = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"  \d+\.\d s\s*$", ""),  # how long a check took, where that was long
    (r"(of the ranks' time was lost in communication); .*", r"\1"),  # the machine's load decides
    (r"-[0-9a-f]{6,}\b|\b[0-9a-f]{12,}\b", "N"),
    (r"\S*/runs/", "runs/"),
    (r"(?:\w+/)+\w+\.py\b", "SOURCE"),
    (r"\S+@(?=\d)", "USER@"),
    (r"[−+±-]?\b\d[\d,.:]*(e[-+]?\d+)?", "N"),
    (r"N\s*[kKMGT]i?B\b|N\s*B\b|N\s*(ns|µs|ms|s|min|h)\b|N[kKMG]\b", "N"),
    (r"[█▓▒░]+(?! \w)", "▇"),
    (r"[─━═]{2,}", "─"),
    (r"N[–|+]N", "N"),
    (r"\s+", " "),
)
# Lines that only a busy machine prints.
_SOMETIMES = re.compile(
    r"^(starting the workers|load N on N cores|step N/N loss N about|N% measured)"
)


def mask(line: str) -> str:
    """Return a line without what differs from run to run."""
    for pattern, replacement in _MASKS:
        line = re.sub(pattern, replacement, line)
    return line.strip()


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Say where shown lines are not what was printed, or nothing.

    A line that is an ellipsis stands for any lines, one within a line for any text.
    """
    wanted = [(line, mask(line)) for line in shown]
    got = [line for line in map(mask, printed) if not _SOMETIMES.match(line)]
    while got and not got[-1]:
        got.pop()
    at, free = 0, False
    for line, masked in wanted:
        if masked == ELLIPSIS:
            free = True
            continue
        if not masked and (at >= len(got) or not got[at]):
            at += 1
            continue
        candidates = range(at, len(got)) if free else range(at, min(at + 1, len(got)))
        found = next((k for k in candidates if _matches(masked, got[k])), None)
        if found is None:
            near = got[at] if at < len(got) else "(nothing more)"
            return f"shown: {line}\nprinted there: {near}\nall of it:\n" + "\n".join(printed)
        at, free = found + 1, False
    if not free and any(got[at:]):
        return f"more was printed than shown, from: {next(filter(None, got[at:]))}"
    return ""


def _matches(shown: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, shown.split(ELLIPSIS)))
    return re.fullmatch(pattern, printed) is not None
