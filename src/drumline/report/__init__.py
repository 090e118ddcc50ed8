"""Run directories turned into tables, lines and JSON. No torch."""

from drumline.report.ledger import Ledger, RankLedger, compute_ledger

__all__ = ["Ledger", "RankLedger", "compute_ledger"]
