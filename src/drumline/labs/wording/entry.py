"""`Entry`: the explanation of one mistake, in both languages, before the facts are filled in."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.labs.language import Said


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was expected, what was seen, the belief behind it, and where to read."""

    expected: Said
    seen: Said
    belief: Said
    read: tuple[str, ...] = ()
    """places in the package: `optim/adam.py:Adam.update`"""
    section: int | None = None
    """of the lab's task sheet; None: nothing of the lab's own"""
