"""Tables at 80 columns: no heading and no number may be cut."""

from __future__ import annotations

import pytest
from rich.console import Console

from drumline.report.ledger.accounts import Ledger, RankLedger
from drumline.report.ledger.links import SlowLink
from drumline.report.tables import (
    coverage_table,
    ledger_table,
    ledger_verdict,
    narrow_table,
    summary_table,
    time_bar,
)


def render(thing, width=80) -> str:
    console = Console(width=width, record=True, force_terminal=False, file=None)
    with console.capture() as captured:
        console.print(thing)
    text = captured.get()
    assert all(len(line) <= width for line in text.splitlines())
    return text


def row(rank=0, *, data=0.0, compute=0.0, wait=0.0, transfer=0.0, caused=0.0) -> RankLedger:
    return RankLedger(
        rank,
        total_s=data + compute + wait + transfer,
        data_s=data,
        compute_s=compute,
        wait_s=wait,
        transfer_s=transfer,
        exposed_wait_s=wait,
        exposed_transfer_s=transfer,
        caused_s=caused,
    )


def ledger(*rows: RankLedger, steps=1, nbytes=0) -> Ledger:
    lost = sum(r.exposed_s for r in rows)
    return Ledger(ranks=list(rows), steps=steps, nbytes=nbytes, lost_s=lost)


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# The ledger


def test_the_ledger_of_slow_steps_fits():
    rows = [RankLedger(rank, *[9.99999] * 8) for rank in range(4)]
    text = render(ledger_table(Ledger(ranks=rows, steps=1, lost_s=sum(r.exposed_s for r in rows))))
    assert "…" not in text
    lines = cells(text)
    assert ["rank", "step", "data", "compute", "wait", "transfer", "exposed"] in lines
    for rank in range(4):
        numbers = next(line for line in lines if line[0] == str(rank))
        assert numbers[1:7] == [*["9999.99"] * 5, "19999.98"]


def test_a_ledger_is_shown_in_milliseconds_per_step():
    table = ledger_table(
        ledger(
            row(0, data=0.002, compute=0.06, wait=0.03, transfer=0.01),
            row(1, data=0.002, compute=0.09, transfer=0.01, caused=0.03),
            steps=2,
        )
    )
    lines = render(table).splitlines()
    assert lines[0].strip() == "where the time went (ms per step, over 2 steps)"
    assert lines[3].split()[:7] == ["0", "51.00", "1.00", "30.00", "15.00", "5.00", "20.00"]
    assert lines[4].split()[:7] == ["1", "51.00", "1.00", "45.00", "0.00", "5.00", "5.00"]
    assert lines[5].split() == ["░", "data", "█", "compute", "▒", "wait", "▓", "transfer"]


@pytest.mark.parametrize(
    ("parts", "bar"),
    [
        ({"compute": 1}, "████████"),
        ({"data": 1, "compute": 1, "wait": 1, "transfer": 1}, "░░██▒▒▓▓"),
        ({"compute": 7, "transfer": 1}, "███████▓"),
        ({"compute": 1e9, "wait": 1}, "████████"),
        ({}, ""),
    ],
)
def test_the_bar_shows_the_shares(parts, bar):
    assert time_bar(row(**parts), width=8).plain == bar


# The verdict


@pytest.mark.parametrize(
    ("accounts", "said"),
    [
        (ledger(row(compute=1)), "one rank: no time is lost between ranks"),
        (ledger(row(0), row(1)), "no step was logged"),
        (
            ledger(row(0, compute=0.5, wait=0.4, transfer=0.1), row(1, compute=1, caused=0.4)),
            "25% of the ranks' time was lost in communication; 80% of that was waiting for rank 1\n"
            "rank 1 is slow in compute, 500 ms a step above the others",
        ),
        (
            ledger(row(0, compute=3, transfer=1), row(1, compute=3, transfer=1), nbytes=1_663_370),
            "25% of the ranks' time was lost in communication; "
            "100% of that was transfer (1.66 MB per step)",
        ),
        (
            ledger(
                row(0, compute=3, wait=1, caused=1),
                row(1, compute=3, wait=1, caused=1),
                row(2, compute=3, wait=1, caused=1),
            ),
            "25% of the ranks' time was lost in communication; no single rank or link stands out",
        ),
    ],
)
def test_the_verdict_names_what_cost_the_most(accounts, said):
    assert ledger_verdict(accounts) == said.split("\n")


def test_the_slowest_link_is_named_where_transfer_cost_the_most():
    link = SlowLink(node=1, rate_bps=1e8, others_bps=1e9, busy=0.9)
    transfer, told = ledger_verdict(
        ledger(row(0, compute=3, transfer=1), row(1, compute=3, transfer=1), nbytes=100), link
    )
    assert transfer.endswith("100% of that was transfer (100 B per step)")
    assert told == "the link of node 1 (100mbit) is the slowest, and was busy for 90% of the time"
    waiting = ledger(row(0, wait=1), row(1, compute=1, caused=1))
    assert "link" not in " ".join(ledger_verdict(waiting, link))


# Coverage


def coverage(labels, *, ranks=4, draws=1_500_000, shared=60_000):
    """A coverage document as `drumline.data.coverage` writes it."""
    return {
        "kind": "dirichlet",
        "run": {
            "steps": 4690,
            "ranks": [
                {"rank": rank, "draws": draws, "distinct": 60_000, "labels": labels}
                for rank in range(ranks)
            ],
            "overlap": [[shared] * ranks for _ in range(ranks)],
            "seen": 60_000,
            "seen_share": 1.0,
        },
    }


def test_ten_labels_have_a_column_each():
    counts = {"0": 0, "1": 7, "2": 9999, "3": 10_000, "4": 999_499, "5": 999_500}
    counts |= {"6": 1_200_000, "7": 25_000_000, "8": 8, "9": 9}
    text = render(coverage_table(coverage(counts)))
    assert "…" not in text.replace("0 … 9: draws by label", "")
    lines = cells(text)
    assert lines[1] == ["rank", "draws", "distinct", "shared", *"0123456789"]
    assert lines[3] == [
        *("0", "1500000", "60000", "60000"),
        *("0", "7", "9999", "10k", "999k", "1.0M", "1.2M", "25M", "8", "9"),
    ]
    assert "100.0% of the samples were seen by some rank" in text


def test_shared_is_the_most_that_one_other_rank_has_too():
    document = coverage({"0": 1}, ranks=3)
    document["run"]["overlap"] = [[9, 2, 5], [2, 9, 1], [5, 1, 9]]
    lines = cells(render(coverage_table(document)))
    assert [line[3] for line in lines[3:6]] == ["5", "2", "5"]


def test_many_labels_are_listed_and_none_is_lost():
    labels = {str(n): 100 + n for n in range(65)}
    text = render(coverage_table(coverage(labels, ranks=1)))
    words = text.split()
    assert [f"{n}:{100 + n}" for n in range(65)] == [
        w for w in words if w[0].isdigit() and ":" in w
    ]


def test_data_without_labels_has_no_label_columns():
    lines = cells(render(coverage_table(coverage(None, ranks=1, shared=0))))
    assert lines[1] == ["rank", "draws", "distinct", "shared"]
    assert lines[3] == ["0", "1500000", "60000", "0"]


# Summary

SUMMARY = {
    "world_size": 4,
    "strategy": "parameter_server",
    "steps": 12345,
    "loss": 0.123456,
    "test_loss": 0.1,
    "accuracy": 0.97345,
    "train_s": 12.3,
    "samples_per_s": 123456.7,
    "weights_sha256": "0123456789abcdef" * 4,
}


def test_a_summary_says_what_came_of_it():
    text = render(summary_table(SUMMARY, "/home/somebody/" + "deep/" * 20 + "runs/demo-1"))
    lines = cells(text)
    assert lines[0] == ["test", "accuracy", "97.34%"]
    assert ["steps", "12345", "in", "12.3", "s"] in lines
    assert "123,457" in text
    assert "4 by parameter_server" in text
    path = "".join(text[text.index("/home") :].split())
    assert path == "/home/somebody/" + "deep/" * 20 + "runs/demo-1"  # folded, not cut


def test_a_run_without_evaluation_has_no_accuracy():
    assert "accuracy" not in render(summary_table({**SUMMARY, "accuracy": None}, "runs/demo-1"))


def test_a_narrow_table_spends_two_characters_between_columns():
    table = narrow_table(gap=2)
    table.add_column("a")
    table.add_column("b")
    table.add_row("1", "2")
    assert [line.rstrip() for line in render(table).splitlines()] == ["a  b", "────", "1  2"]
