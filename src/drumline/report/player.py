"""An explanation as one HTML page that needs nothing else: `player.html` and the recording."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from drumline.core.files import write_atomic
from drumline.report.explanation import Explanation
from drumline.report.wording import ALGORITHMS, COLLECTIVES

_HOLE = "/*RECORDING*/"


def write_page(path: Path, explanation: Explanation) -> None:
    """Write the page; an older one at that place is replaced.

    Raises:
        RunDirError: it cannot be written.
    """
    write_atomic(path, render_page(explanation))


def render_page(explanation: Explanation) -> str:
    """Return the page."""
    call = explanation.call
    how, where = ALGORITHMS[call.algorithm]
    document = {
        **explanation.to_json(),
        "words": {"what": COLLECTIVES[call.collective], "how": how, "where": where},
    }
    # In a script element only "</" could end it early, and "<!--" confuse it.
    text = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    template = files("drumline.report").joinpath("player.html").read_text(encoding="utf-8")
    return template.replace(_HOLE, text, 1)
