"""Parameters with several names: a head that is the embedding turned round, one tensor for both."""

from __future__ import annotations

from torch import nn


def tied_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the groups of names that share one parameter, in the model's order.

    Where such names end up in different stages, each stage has a copy under its own name, and the
    copies stay equal if each gets the sum of all their gradients.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]
