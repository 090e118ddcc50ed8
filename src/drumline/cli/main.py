"""`drumline`: the entry point of the command line; every error ends here, as a message and a code.

Standard output cannot fail: a full disk or an odd encoding costs the text, not the run
(`ForgivingOutput`). Signals that end a command (`docker stop`, systemd, Slurm and a closing
terminal send others than Ctrl-C) do what Ctrl-C does, so that it can clean up (`EndingSignals`).
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO, cast

from drumline.cli.app import app
from drumline.core.errors import DrumlineError, InterruptError, UsageError

# isort: off
# the commands register themselves, in the order in which --help lists them
from drumline.cli.commands import bench, cluster, labs, train, show, jobs  # noqa: F401
# isort: on

__all__ = ["app", "main"]

_CLUSTER = ("asyncssh", "boto3", "botocore", "cryptography", "fsspec", "s3fs")
"""what the extra `cluster` brings, and its commands import"""
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    """Run the command line; every error ends here, as one message and an exit code."""
    signals = EndingSignals()
    output = _forgive_output()
    problem, code = _run()
    with contextlib.suppress(BrokenPipeError):
        output.flush()
    if output.lost is not None and problem is None:
        problem, code = f"the output is not whole: {output.lost.strerror}", 1
    if problem is not None:
        print(f"drumline: {problem}", file=sys.stderr)
    signals.leave()  # a second Ctrl-C would end Python on its way out, with a code of its own
    # a shell expects 128 + n of a command that signal n has ended
    sys.exit(128 + signals.number if code == InterruptError.exit_code else code)


def _run() -> tuple[str | None, int]:
    """Return what went wrong, where there is something to say, and the exit code."""
    try:
        app()
    except DrumlineError as error:
        return error.message, error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CLUSTER:
            raise
        return (
            f"this command needs {error.name}, which is not installed; install what clusters need: "
            f"pip install 'drumline[cluster]' (in a clone: pip install -e '.[cluster]')"
        ), UsageError.exit_code
    except SystemExit as end:  # how typer ends, whatever happened
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return "interrupted" if code == InterruptError.exit_code else None, code
    except KeyboardInterrupt:
        return "interrupted", InterruptError.exit_code
    return None, 0


def _forgive_output() -> ForgivingOutput:
    """Put such an output in the place of `sys.stdout`; signs that it cannot show become `?`."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  kept to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    output = ForgivingOutput(sys.stdout)
    sys.stdout = cast(TextIO, output)
    return output


class ForgivingOutput:
    """Passes text on until that fails, and drops it from then on; a closed pipe is not forgiven."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        """why text was lost"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or forget it."""
        with self._forgiving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what waits, or forget it."""
        with self._forgiving():
            self._stream.flush()

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = self.lost or error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class EndingSignals:
    """Turns the signals into KeyboardInterrupt, and remembers which one it was."""

    def __init__(self) -> None:
        self.number = signal.SIGINT
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
                signal.signal(number, self._end)

    def leave(self) -> None:
        """Ignore further ones: the command has told how it ended, and only has to leave."""
        for number in (signal.SIGINT, *_ENDING):
            signal.signal(number, signal.SIG_IGN)

    def _end(self, number: int, _: FrameType | None) -> None:
        self.number = signal.Signals(number)
        raise KeyboardInterrupt


if __name__ == "__main__":
    main()
