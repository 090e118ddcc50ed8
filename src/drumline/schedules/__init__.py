"""Collectives on paper: which rank sends how much to whom, in which round, and what that costs.

Pure functions without torch: what an algorithm plans (`collectives`), what that costs (`cost`), and
what recorded ranks really did (`playback`).
"""
