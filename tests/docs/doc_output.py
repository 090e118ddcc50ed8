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
    (r">10×", "0%"),  # an interval that is wider than a table tells
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
# The ledger's verdict, which its numbers may make longer than a line.
_VERDICT = re.compile(
    r"of the ranks' time was lost in communication; .*?(stands out|rank \d+|per\s+step\))",
    re.DOTALL,
)
# Lines that only a busy machine prints, or one that is not too busy.
_SOMETIMES = re.compile(
    r"^(starting the workers|load N on N cores|step N/N loss N about|N% measured"
    r"|rank N is slow|the link of node N)"
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
    try:
        align(shown, printed)
    except MismatchError as fault:
        return f"{fault}\nall of it:\n" + "\n".join(printed)
    return ""


class MismatchError(Exception):
    """What is shown was not printed."""


def align(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the printed lines in the place of the shown ones; those with an ellipsis stay.

    Raises:
        MismatchError: a line was not printed, or more was printed than shown.
    """
    whole = _VERDICT.sub(lambda found: found[0].replace("\n", ""), "\n".join(printed))
    got = [(line.rstrip(), masked) for line in whole.splitlines() for masked in [mask(line)]]
    got = [(line, masked) for line, masked in got if not _SOMETIMES.match(masked)]
    at, free, aligned = 0, False, []
    for line in shown:
        masked = mask(line)
        if masked == ELLIPSIS:
            free = True
        elif _SOMETIMES.match(masked):
            pass
        elif not masked and (at >= len(got) or not got[at][1]):
            at += 1
        else:
            ahead = range(at, len(got) if free else min(at + 1, len(got)))
            found = next((k for k in ahead if _matches(masked, got[k][1])), None)
            if found is None:
                near = got[at][0] if at < len(got) else "(nothing more)"
                raise MismatchError(f"shown: {line}\nprinted there: {near}")
            at, free = found + 1, False
            line = line if ELLIPSIS in line else got[found][0]
        aligned.append(line)
    rest = [line for line, _ in got[at:] if line]
    if rest and not free:
        raise MismatchError(f"more was printed than shown, from: {rest[0]}")
    return aligned


def _matches(shown: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, shown.split(ELLIPSIS)))
    return re.fullmatch(pattern, printed) is not None
