"""What the ways to one all_reduce are called on the page."""

from __future__ import annotations

from drumline.labs.communication.experiments import WAYS
from drumline.report.page.translator import Translator

_NAMES = {
    "native": ("native all_reduce", "后端自带 all_reduce"),
    "linear": ("parameter server", "参数服务器"),
}
"""of those that have another name than the word that `bench collectives` knows"""


def way_names(say: Translator) -> dict[str, str]:
    """Return the names of all, for columns of tables."""
    return {way: way_name(say, way) for way in WAYS}


def way_name(say: Translator, way: str) -> str:
    """Return the name of one."""
    return say.pick(*_NAMES.get(way, (way, way)))
