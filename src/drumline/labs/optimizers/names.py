"""What the optimizers are called on the page."""

from __future__ import annotations

from drumline.report.page.pen import Pen
from drumline.report.page.prose import Tongue

_NAMES = {
    "gd": ("GD", "GD"),
    "sgd": ("SGD", "SGD"),
    "momentum": ("SGD with momentum", "带动量的 SGD"),
    "adam": ("Adam", "Adam"),
}


def optimizer_names(say: Tongue) -> dict[str, str]:
    """Return the names of all optimizers, for columns of tables."""
    return {optimizer: say.pick(*names) for optimizer, names in _NAMES.items()}


def optimizer_name(say: Tongue | Pen, optimizer: str) -> str:
    """Return the name of an optimizer."""
    names = _NAMES[optimizer]
    return say.pick(*names) if isinstance(say, Tongue) else say.say(*names)
