"""Where the time of a run went: wait and transfer of each rank, pipeline bubbles, traces."""

from drumline.report.ledger.accounts import (
    NS,
    Ledger,
    RankLedger,
    common_steps,
    compute_ledger,
    on_one_clock,
    step_seconds,
    warm_steps,
)

__all__ = [
    "NS",
    "Ledger",
    "RankLedger",
    "common_steps",
    "compute_ledger",
    "on_one_clock",
    "step_seconds",
    "warm_steps",
]
