"""What people write and read: sizes (`1MiB`), rates (`1gbit`), times (`12.3 s`), lists of things,
and the name that was probably meant by a misspelled one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_BYTES = {
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}  # per second
_RATES = {
    **_BITS,
    **{f"{unit}/s": scale for unit, scale in _BITS.items()},
    **{f"{unit}/s": 8 * scale for unit, scale in _BYTES.items()},
}


def parse_bytes(text: object) -> int:
    """Parse a size such as `1MiB`, `25 MB` or `4096`; raises ValueError if the text is none."""
    return _parse(text, {"": 1, **_BYTES}, "a size such as 1MiB, 25MB or 4096")


def parse_rate(text: object) -> int:
    """Parse a rate such as `100mbit`, `1 Gbit/s` or `12.5MB/s`, in bits per second.

    Sizes in bytes need their `/s`: `10mb` and `10mbps` mean different things to different tools.
    Raises ValueError if the text is not a rate.
    """
    return _parse(text, _RATES, "a rate such as 100mbit, 1gbit or 12.5MB/s")


def _parse(text: object, units: Mapping[str, int], expected: str) -> int:
    """Read a number with a unit; it must come to a whole number."""
    from decimal import Decimal  # the launcher starts without it

    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*(?:/s)?)\s*", str(text), re.ASCII)
    scale = None if match is None else units.get(match.group(2).lower())
    number = None if match is None or scale is None else Decimal(match.group(1)) * scale
    if number is None or number != int(number):
        raise ValueError(f"expected {expected}, got {text!r}")
    return int(number)


def format_rate(rate: int) -> str:
    """Format a rate so that `parse_rate` reads the same back: `100mbit`, `1.5gbit`."""
    from decimal import Decimal  # the launcher starts without it

    for unit in ("gbit", "mbit", "kbit"):
        if rate >= _BITS[unit]:
            return f"{(Decimal(rate) / _BITS[unit]).normalize():f}{unit}"
    return f"{rate}bit"


def format_size(nbytes: int) -> str:
    """Format a size so that `parse_bytes` reads the same back: `64KiB`, `1MiB`, `100B`."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale and nbytes % scale == 0:
            return f"{nbytes // scale}{unit}"
    return f"{nbytes}B"


def format_bytes(count: float) -> str:
    """Format a size with three significant digits: `1.66 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_seconds(seconds: float) -> str:
    """Format a duration as a person would say it: `850 ms`, `12.3 s`, `4 min 05 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_metric(name: str, value: float) -> str:
    """Format a metric: `97.50%` of an accuracy, else four digits that count."""
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"


def listed(things: Iterable[object]) -> str:
    """Format a list with commas and a last `and`."""
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}" if most else last


def counted(count: int, thing: str, things: str | None = None) -> str:
    """Format a count: 1 layer, 3 layers; give the plural where it has more than an s."""
    return f"{count} {thing if count == 1 else things or f'{thing}s'}"


def name_ranks(ranks: Iterable[int | str]) -> str:
    """Format ranks for a message: rank 1, or ranks 1 and 3."""
    names = list(ranks)
    return f"rank{'' if len(names) == 1 else 's'} {listed(names)}"


def nearest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Format a hint, `did you mean 'that'?`, with the nearest known word, or else `otherwise`."""
    import difflib  # rarely needed, and not by --help

    near = difflib.get_close_matches(word.replace("-", "_"), list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise
