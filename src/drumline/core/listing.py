"""Several things in one sentence, as people write them: 1 rank, ranks 1, 2 and 4."""

from __future__ import annotations

from collections.abc import Iterable


def listed(things: Iterable[object]) -> str:
    """Write a list with commas and a last `and`."""
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}" if most else last


def counted(count: int, thing: str, things: str | None = None) -> str:
    """Write how many there are: 1 layer, 3 layers; give the plural where it has more than an s."""
    return f"{count} {thing if count == 1 else things or f'{thing}s'}"


def name_ranks(ranks: Iterable[int | str]) -> str:
    """Write ranks: rank 1, or ranks 1 and 3."""
    names = list(ranks)
    return f"rank{'' if len(names) == 1 else 's'} {listed(names)}"
