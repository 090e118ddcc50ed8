"""How labs write numbers whose unit is a word of the page's language, or whose size varies."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.labs.text import LabText
from drumline.report.page.table import (
    Form,
    count,
    milliseconds,
    percent,
    plain,
    points,
    seconds,
    size,
    times,
)
from drumline.report.page.translator import Translator


def point_change(say: Translator) -> Form:
    """Return the form of a difference of shares: `+0.30 points`."""
    unit = say.pick("points", "个百分点") if not isinstance(say, LabText) else say.text("points")
    return lambda value: f"{100 * value:+.2f} {unit}"


def point_size(say: Translator) -> Form:
    """Return the form of a reach in shares, without a sign: `1.42 points`."""
    unit = say.pick("points", "个百分点") if not isinstance(say, LabText) else say.text("points")
    return lambda value: f"{100 * value:.2f} {unit}"


def tiny(value: float) -> str:
    """Write what may be rounding: `3.1e-07`, and 0 as it is."""
    return "0" if value == 0 else f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}"


FORMS: Mapping[str, Form] = {
    form.__name__: form
    for form in (count, milliseconds, percent, plain, points, seconds, size, times, tiny)
}
"""by the names that text may ask for: `{row.loss:tiny}`"""
