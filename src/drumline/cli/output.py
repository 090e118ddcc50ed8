"""Standard output that cannot fail: a full disk or an odd encoding costs the text, not the run."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def forgive_output() -> ForgivingOutput:
    """Put such an output in the place of `sys.stdout`; signs that it cannot show become `?`."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  kept to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    output = ForgivingOutput(sys.stdout)
    sys.stdout = output
    return output


class ForgivingOutput(io.TextIOBase):
    """Passes text on until that fails, and drops it from then on; a closed pipe is not forgiven."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        """why text was lost"""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the text."""
        return self._stream.encoding

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, text: str) -> int:
        """Write text, or forget it."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Write what waits, or forget it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.lost = self.lost or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
