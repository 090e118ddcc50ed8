"""Tied parameters over parts: each holder has a copy, and all copies must move alike.

In the whole model a tied parameter, such as an embedding that is also the last layer's weight, is
one tensor, whose gradient is the sum over its uses. Split, each use is in another part:

    part 0   embedding.weight   ∂ of its use ─┐                ┌─► the sum
    part 2   head.weight        ∂ of its use ─┴─► leader adds ─┴─► the sum

The same start and the same gradient make the same step on both, for any optimizer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drumline.core.errors import UsageError
from drumline.parallel.rpc.parts import Part, ask

Tie = list[tuple[int, str]]
"""the parts that hold a copy, each with the name that it has there"""


def find_ties(
    parts: Sequence[Any], names: Sequence[Sequence[str]], tied: Sequence[tuple[str, ...]]
) -> list[Tie]:
    """Look up who holds the copies.

    Args:
        parts: RRefs to the parts.
        names: of each part's parameters.
        tied: the names that one parameter has; the same name may also be in several parts.

    Raises:
        UsageError: a name that no part has, or copies that differ.
    """
    return [_find(parts, names, copies) for copies in tied]


def _find(parts: Sequence[Any], names: Sequence[Sequence[str]], copies: tuple[str, ...]) -> Tie:
    for name in copies:
        if not any(name in held for held in names):
            raise UsageError(
                f"no part trains a parameter {name!r}, which should be tied to others as {copies}; "
                f"give the names that the parts have"
            )
    tie = [(part, name) for part, held in enumerate(names) for name in copies if name in held]
    first, *others = [ask(parts[part], Part.parameter, name).wait() for part, name in tie]
    for (part, name), other in zip(tie[1:], others, strict=True):
        if not torch.equal(first, other):
            raise UsageError(
                f"{name!r} of part {part} is to be tied to {tie[0][1]!r} of part {tie[0][0]}, but "
                f"holds other values; give all parts the same weights first"
            )
    return tie


def sum_tied(parts: Sequence[Any], tie: Tie) -> int:
    """Give all copies the sum of their gradients; return how many bytes the leader has sent.

    They are added up in the order of the parts.
    """
    calls = [ask(parts[part], Part.gradient, name) for part, name in tie]
    found = [gradient for call in calls if (gradient := call.wait()) is not None]
    if not found:
        return 0
    total = torch.stack(found).sum(0)
    for done in [ask(parts[part], Part.put_gradient, name, total) for part, name in tie]:
        done.wait()
    return total.nbytes * sum(part > 0 for part, _ in tie)
