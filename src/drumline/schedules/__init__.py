"""Collectives on paper: which rank sends how much to whom, in which round, and what that costs.

Pure functions without torch, read by `comm` (segment sizes), `probe`, `bench` and `report.explain`.
"""
