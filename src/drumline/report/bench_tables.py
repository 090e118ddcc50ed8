"""Tables of the benches, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.report.tables import narrow_table

Values = Mapping[str, Any]
_MOST_RANKS = 4


def format_size(nbytes: int) -> str:
    """Write a size as it is given: `64KiB`, `1MiB`, `100B`."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale and nbytes % scale == 0:
            return f"{nbytes // scale}{unit}"
    return f"{nbytes}B"


def format_time(seconds: float) -> str:
    """Write a time of microseconds to seconds with three digits, in ms."""
    return f"{seconds * 1e3:.3g}" if seconds < 0.9995 else f"{seconds * 1e3:.0f}"


def collectives_table(rows: Sequence[Values]) -> RenderableType:
    """Show a row for each size and rival; times are those of the slowest rank."""
    shaped = any(row["link_share"] is not None for row in rows)
    ranks = sorted({row["ranks"] for row in rows})
    counts = len(ranks) > 1
    table = narrow_table(gap=1 if shaped or counts else 2)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("on", no_wrap=True)
    for name in (*(["ranks"] if counts else []), "ms", "quartiles", "alg", "bus", "wire"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (*(["link"] if shaped else []), "pred."):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in rows:
        group = row["ranks"], row["size"]
        size = format_size(row["size"]) if group != last else ""
        cells = [size, row["algorithm"], row["backend"]]
        cells += [str(row["ranks"])] if counts else []
        cells += [
            format_time(row["median_s"]),
            f"{format_time(row['low_s'])}–{format_time(row['high_s'])}",
            _bandwidth(row["algorithm_bandwidth"]),
            _bandwidth(row["bus_bandwidth"]),
            "" if row["wire_bytes"] is None else _short(max(row["wire_bytes"])),
        ]
        cells += [_share(row["link_share"])] if shaped else []
        error = row["prediction_error"]
        table.add_row(*cells, "" if error is None else f"{error:+.0%}")
        last = group
    return Group(Text(_title(rows[0], ranks), style="bold"), table, Text(_legend(rows[0], shaped)))


def fits_table(fits: Sequence[Values]) -> RenderableType:
    """Show what a message costs by each rival, and what each byte adds."""
    table = narrow_table()
    for name in ("algorithm", "on"):
        table.add_column(name, no_wrap=True)
    for name in ("ranks", "alpha µs", "±", "beta ns/B", "±", "that is MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for fit in fits:
        alpha, beta = fit["alpha_s"], fit["beta_s_per_byte"]
        errors = fit["alpha_error_s"], fit["beta_error_s_per_byte"]
        table.add_row(
            fit["algorithm"],
            fit["backend"],
            str(fit["ranks"]),
            f"{alpha * 1e6:.0f}",
            "?" if errors[0] is None else f"{errors[0] * 1e6:.0f}",
            f"{beta * 1e9:.3g}",
            "?" if errors[1] is None else f"{errors[1] * 1e9:.2g}",
            f"{1e-6 / beta:,.0f}" if beta else "",
        )
    note = (
        "fitted to all sizes: time = alpha · rounds + beta · bytes on the critical path\n"
        "(native: one round, as its messages are not known)"
    )
    return Group(Text("what a message costs", style="bold"), table, Text(note))


def aggregation_table(rows: Sequence[Values]) -> RenderableType:
    """Show for each situation and strategy the step, and what each rank waits and transfers."""
    ranks = sorted({row["rank"] for row in rows})
    shown = ranks if len(ranks) <= _MOST_RANKS else []
    parts: list[RenderableType] = []
    for situation in dict.fromkeys(row["situation"] for row in rows):
        own = [row for row in rows if row["situation"] == situation]
        table = narrow_table()
        table.add_column("strategy", no_wrap=True)
        names = [f"rank {rank}" for rank in shown] or ["least", "most"]
        for name in ("step", "× even", *names):
            table.add_column(name, justify="right", no_wrap=True)
        for kind in dict.fromkeys(row["kind"] for row in own):
            of_kind = [row for row in own if row["kind"] == kind]
            even = next((row["step_ms"] for row in rows if _is_even(row, kind)), None)
            step = of_kind[0]["step_ms"]
            ends = shown or [_extreme(of_kind, min), _extreme(of_kind, max)]
            table.add_row(
                kind,
                f"{step:.1f}",
                f"{step / even:.2f}" if even else "",
                *(_split(of_kind[rank]) for rank in ends),
            )
        parts += [Text(situation, style="bold"), table, Text()]
    note = (
        "ms per step: wait + transfer of each rank. Wait: until the last rank arrives\n"
        "at a bucket; transfer: after that. step: the slowest rank's median, with compute."
    )
    return Group(*parts, Text(note))


def _is_even(row: Values, kind: str) -> bool:
    return bool(row["situation"] == "even" and row["kind"] == kind)


def _extreme(rows: Sequence[Values], pick: Any) -> int:
    """The rank that communicates least, or most."""
    at: int = pick(range(len(rows)), key=lambda k: rows[k]["wait_ms"] + rows[k]["transfer_ms"])
    return at


def _split(row: Values) -> str:
    return f"{row['wait_ms']:.1f}+{row['transfer_ms']:.1f}"


def _title(row: Values, counts: Sequence[int]) -> str:
    where = f" on {row['nodes']} nodes" if row["nodes"] > 1 else ""
    return f"{row['collective']}, {' and '.join(map(str, counts))} ranks{where}"


def _legend(row: Values, shaped: bool) -> str:
    wire = "what the busiest node sent" if row["nodes"] > 1 else "what crossed the loopback"
    lines = [
        "ms: median of the slowest rank. alg, bus: nccl-tests' bandwidths in MB/s.",
        f"wire: {wire}, in bytes, as the interface counts.",
        "pred.: alpha and beta fitted to the other sizes, against the measured time.",
    ]
    if shaped:
        lines.insert(2, "link: share of the least time that the busiest link allows the algorithm.")
    return "\n".join(lines)


def _bandwidth(bytes_per_s: float) -> str:
    megabytes = bytes_per_s / 1e6
    return f"{megabytes:.0f}" if megabytes >= 9.95 else f"{megabytes:.1f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _short(count: int) -> str:
    """Write a count of bytes in five characters: `812`, `98.3k`, `50.3M`."""
    for unit, scale in (("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g}{unit}"
    return str(count)
