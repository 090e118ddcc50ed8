"""Signals that end a command: all of them as Ctrl-C does, so that it can tidy up and say so.

`docker stop`, systemd, Slurm and a closing terminal send others than Ctrl-C.
"""

from __future__ import annotations

import signal
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class EndingSignals:
    """Turns the signals into KeyboardInterrupt, and remembers which one it was."""

    def __init__(self) -> None:
        self._number = signal.SIGINT
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
                signal.signal(number, self._end)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that such a signal has ended."""
        return 128 + self._number

    def leave(self) -> None:
        """Ignore further ones: the command has told how it ended, and only has to leave."""
        for number in (signal.SIGINT, *_ENDING):
            signal.signal(number, signal.SIG_IGN)

    def _end(self, number: int, _: FrameType | None) -> None:
        self._number = signal.Signals(number)
        raise KeyboardInterrupt
