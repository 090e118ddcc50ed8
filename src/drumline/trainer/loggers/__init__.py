"""Loggers: where the numbers of a run go beside its directory. See `protocol`."""

from drumline.trainer.loggers.protocol import Logger, Loggers, build_loggers

__all__ = ["Logger", "Loggers", "build_loggers"]
