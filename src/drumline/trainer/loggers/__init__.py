"""Loggers: where the numbers of a run go beside its directory. See `protocol`."""
