"""What commands for clusters draw, on terminals of each width."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from drumline.cli.cluster_display import NodeRows, print_machines, refuse_rank
from drumline.cluster.providers import Machine
from drumline.core.errors import UsageError

MACHINES = [
    Machine(
        node=node,
        host=f"203.0.113.{node}",
        address=f"10.0.0.{node}",
        user="ubuntu",
        identity=f"i-0123456789abcdef{node}",
        price_usd=0.096,
    )
    for node in range(2)
]


def console(width, *, terminal=True):
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False
    )


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (100, "worker1           gone   10.0.0.1  ubuntu@203.0.113.1  i-0123456789abcdef1  0.096"),
        (80, "worker1           gone   ubuntu@203.0.113.1  i-0123456789abcdef1  0.096"),
        (40, "worker1           gone   0.096"),
    ],
)
def test_a_node_is_one_line_at_any_width(width, line):
    out = console(width)
    print_machines(out, MACHINES, {0: "alive", 1: "gone"})
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[2].rstrip() == line
    piped = console(width, terminal=False)
    print_machines(piped, MACHINES, {0: "alive", 1: "gone"})
    assert "i-0123456789abcdef1" in piped.file.getvalue(), "nothing is left out of a file"
    assert len(piped.file.getvalue().splitlines()) == 3


@pytest.mark.parametrize("width", [80, 40])
def test_rows_keep_the_nodes_names_and_the_title_its_line(width):
    out = console(width)
    rows = NodeRows(out, "a cluster with a name that is long: 2 nodes of twin, and more")
    rows._rows = {f"worker{k}": ("something long " * 9, time.monotonic() - 5) for k in range(2)}
    out.print(rows._draw())
    title, *lines = out.file.getvalue().splitlines()
    assert title.startswith("a cluster with")
    assert [line.split()[0] for line in lines] == ["worker0", "worker1"]
    assert all(line.rstrip().endswith("5.0 s") for line in lines)


def test_a_rank_that_is_not_there_is_refused():
    refuse_rank("j", None, range(2))
    refuse_rank("j", 1, range(2))
    for ranks, words in (
        (range(2), "has ranks 0 and 1"),
        (range(64), "has ranks 0 to 63"),
        (range(1), "has rank 0"),
        ({}, "never had any"),
    ):
        with pytest.raises(UsageError, match=f"^no rank 64: j {words}$"):
            refuse_rank("j", 64, ranks)
