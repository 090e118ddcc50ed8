"""Small pictures out of characters, for a terminal and for a grader's page."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, float, float]
"""microbatch, start and end in seconds"""


def draw_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Draw a table in text for a student: rows below their head, aligned to the right."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def draw_coverage(seen: Sequence[set[int]], total: int, cells: int = 48) -> list[str]:
    """Draw in text which samples each rank, and anyone, saw: █ all of a cell's, ▒ some, · none."""
    cells = min(cells, total)
    lines = []
    for name, samples in [
        *((f"rank {rank}", samples) for rank, samples in enumerate(seen)),
        ("anyone", set().union(*seen)),
    ]:
        marks = []
        for cell in range(cells):
            here = range(cell * total // cells, (cell + 1) * total // cells)
            found = sum(sample in samples for sample in here)
            marks.append("·" if not found else "█" if found == len(here) else "▒")
        lines.append(f"{name:<7} {''.join(marks)} {len(samples)} of {total}")
    return lines


def draw_time_line(parts: Sequence[Sequence[Span]], cells: int = 56) -> list[str]:
    """Draw in text for a student what each part computed when, by the microbatch's number."""
    spans = [span for part in parts for span in part]
    if not spans:
        return []
    first = min(start for _, start, _ in spans)
    cell_s = max(max(end for _, _, end in spans) - first, 1e-9) / cells
    lines = []
    for number, part in enumerate(parts, start=1):
        marks = ["."] * cells
        for microbatch, start, end in part:
            left = int((start - first) / cell_s)
            right = max(left + 1, round((end - first) / cell_s))
            for cell in range(left, min(right, cells)):
                marks[cell] = str((microbatch + 1) % 10)
        lines.append(f"part {number}  {''.join(marks)}")
    return lines


def draw_bars(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], cells: int = 44
) -> list[str]:
    """Draw bars in text for a student: rank 0  wwwwtttt  wait 0.40 s, transfer 0.30 s."""
    longest = max([sum(max(0.0, s) for _, s in lengths) for _, lengths in rows] + [1e-9])
    lines = []
    widest = max(len(name) for name, _ in rows)
    for name, lengths in rows:
        marks = "".join(kind[0] * round(max(0.0, s) / longest * cells) for kind, s in lengths)
        said = ", ".join(f"{kind} {s:.2f} s" for kind, s in lengths)
        lines.append(f"{name:<{widest}}  {marks:<{cells}}  {said}")
    return lines
