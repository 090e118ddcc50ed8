"""Tables in narrow terminals: whole columns go, no number is cut, and a line says which went."""

from __future__ import annotations

from operator import itemgetter
from types import SimpleNamespace

import pytest
from rich.console import Console

from drumline.bench.communication.display import aggregation_table, collectives_table, fits_table
from drumline.bench.model_parallel.display import _legend as model_legend
from drumline.bench.scaling.display import _legend as scaling_legend
from drumline.report.tables import FittingColumn, FittingTable

TABLE = FittingTable(
    rows=[("ring", "1000", "11111", "7"), ("tree", "2000", "22222", "8")],
    columns=[
        FittingColumn("who", itemgetter(0), justify="left"),
        FittingColumn("a", itemgetter(1), drop_order=2),
        FittingColumn("b", itemgetter(2), drop_order=1),
        FittingColumn("c", itemgetter(3), drop_order=2, dropped_name="the c"),
    ],
    elsewhere="--json",
)


def render(thing, width) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(thing)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_all_columns_where_there_is_room():
    assert render(TABLE, 20) == [
        "who      a      b  c",
        "────────────────────",
        "ring  1000  11111  7",
        "tree  2000  22222  8",
    ]


def test_the_least_important_go_first_and_those_of_one_turn_together():
    assert render(TABLE, 19) == [
        "who      a  c",
        "─────────────",
        "ring  1000  7",
        "tree  2000  8",
        "no room for b: see",
        "--json or a wider",
        "terminal",
    ]
    narrow = render(TABLE, 12)
    assert narrow[:4] == ["who", "────", "ring", "tree"]
    assert " ".join(narrow[4:]) == "no room for a, b, the c: see --json or a wider terminal"


def test_what_stands_below_a_table_has_room_in_a_usual_terminal():
    for legend in (model_legend(1), model_legend(2), scaling_legend("16 ranks")):
        assert max(map(len, legend.splitlines())) <= 80


def bench_row(size, algorithm):
    return {
        "collective": "all_reduce",
        "algorithm": algorithm,
        "backend": "gloo",
        "ranks": 4,
        "nodes": 2,
        "size": size,
        "asked_size": size,
        "median_s": 1.03512,
        "low_s": 0.98123,
        "high_s": 1.22,
        "algorithm_bandwidth": 32.4e6,
        "bus_bandwidth": 48.6e6,
        "wire_bytes": [100_900_000, 100_800_000],
        "link_share": 0.78,
        "prediction_error": -0.1,
    }


ROWS = [
    SimpleNamespace(**bench_row(size, name))
    for size in (2**16, 2**25)
    for name in ("halving_doubling", "native")
]
FITS = [
    SimpleNamespace(
        algorithm="halving_doubling",
        backend="gloo",
        ranks=4,
        alpha_s=0.001429,
        beta_s_per_byte=1.09e-8,
        alpha_error_s=2.09e-4,
        beta_error_s_per_byte=6.7e-10,
    )
]
PARTS = [
    SimpleNamespace(
        situation="even",
        kind="parameter_server",
        rank=rank,
        step_ms=1234.5,
        wait_ms=100.25,
        transfer_ms=1000.5,
    )
    for rank in range(4)
]


@pytest.mark.parametrize("width", range(20, 101, 4))
@pytest.mark.parametrize(
    "table", [collectives_table(ROWS), fits_table(FITS), aggregation_table(PARTS)]
)
def test_no_number_of_a_bench_is_cut(table, width):
    lines = render(table, width)
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width


def test_what_a_bench_keeps_at_sixty_columns():
    lines = render(collectives_table(ROWS), 60)
    assert lines[1].split() == [
        "size",
        "algorithm",
        "on",
        "ms",
        "quartiles",
        "bus",
        "link",
        "pred.",
    ]
    assert lines[3].split() == [
        *("64KiB", "halving_doubling", "gloo", "1035", "981–1220", "49", "78%", "-10%")
    ]
    assert "no room for alg, wire: see --json, --csv or a wider terminal" in lines
    lines = render(aggregation_table(PARTS), 60)
    assert "no room for rank 2, rank 3: see --json, --csv or a wider" in lines
