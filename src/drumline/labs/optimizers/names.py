"""What the optimizers are called on the page."""

from __future__ import annotations

from drumline.report.page.blocks import Column
from drumline.report.page.style import FigureStyle
from drumline.report.page.translator import Translator

_NAMES = {
    "gd": ("GD", "GD"),
    "sgd": ("SGD", "SGD"),
    "momentum": ("SGD with momentum", "带动量的 SGD"),
    "adam": ("Adam", "Adam"),
}


def optimizer_column(say: Translator, **more: str) -> Column:
    """Return the column of a table that names optimizers, and what `more` names."""
    names = {optimizer: say.pick(*names) for optimizer, names in _NAMES.items()}
    return Column(
        key="optimizer", name=say.pick("optimizer", "优化器"), align="left", labels=names | more
    )


def optimizer_name(say: Translator | FigureStyle, optimizer: str) -> str:
    """Return the name of an optimizer."""
    names = _NAMES[optimizer]
    return say.pick(*names) if isinstance(say, Translator) else say.say(*names)
