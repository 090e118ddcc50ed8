"""The word that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'that'?` with the known word that is nearest, or else `otherwise`."""
    near = difflib.get_close_matches(word.replace("-", "_"), list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise
