"""Run directories turned into tables, lines and JSON. No torch."""

from drumline.report.ledger.accounts import Ledger, RankLedger, compute_ledger

__all__ = ["Ledger", "RankLedger", "compute_ledger"]
