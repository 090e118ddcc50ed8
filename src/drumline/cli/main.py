"""`drumline`: the commands. Each one's work is imported when it is called; torch never is."""

from __future__ import annotations

import contextlib
import sys

from drumline.cli import (
    benching,
    clustering,
    lab_running,
    labs,
    launching,
    looking,
    reporting,
    submitting,
)
from drumline.cli.app import app
from drumline.cli.output import forgive_output
from drumline.cli.signals import EndingSignals
from drumline.core.errors import DrumlineError, InterruptError, UsageError

__all__ = [  # commands hang themselves on the app
    "app",
    "benching",
    "clustering",
    "lab_running",
    "labs",
    "launching",
    "looking",
    "main",
    "reporting",
    "submitting",
]


_CLUSTER = ("asyncssh", "boto3", "botocore", "cryptography", "fsspec", "s3fs")
"""what the extra `cluster` brings, and its commands import"""


def main() -> None:
    """Run the command line; every error ends here, as one message and an exit code."""
    signals = EndingSignals()
    output = forgive_output()
    problem, code = _run()
    with contextlib.suppress(BrokenPipeError):
        output.flush()
    if output.lost is not None and problem is None:
        problem, code = f"the output is not whole: {output.lost.strerror}", 1
    if problem is not None:
        print(f"drumline: {problem}", file=sys.stderr)
    signals.leave()  # a second Ctrl-C would end Python on its way out, with a code of its own
    sys.exit(signals.exit_code if code == InterruptError.exit_code else code)


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


if __name__ == "__main__":
    main()
