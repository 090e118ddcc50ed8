"""The error tree, and the exit code that each branch turns into.

    DrumlineError            exit 1: it failed
    ├── UsageError           exit 2: the command line was off
    │   └── SpecError        a spec that cannot be what was meant (file, line, key)
    ├── RunDirError          a run directory that cannot be made, read or resumed
    ├── DataError            a data set that is missing or damaged
    ├── CheckpointError      a checkpoint that cannot be written or trusted
    ├── CommError            ranks that cannot find or understand each other
    │   └── PeerError        a rank that the others wait for in vain (rank)
    ├── ClusterError         a cluster that cannot be made, reached or removed
    │   ├── CloudError       a cloud that refuses (kind: capacity, quota, permission, …)
    │   └── HostError        a node that does not answer as it should (node)
    ├── LabError             a lab whose experiments failed, or a report that is not what it was
    ├── InterruptError       exit 130: Ctrl-C
    ├── DivergenceError      a loss that is NaN or infinite (step, rank, tensor)
    └── WorkerError          a rank that died (rank, traceback, log)
        └── RankTimeoutError ranks that did not end in time (ranks)

Every message says what failed, what it got and what it expected, and what to do next. Only the CLI
prints them. Errors cross the process boundary as JSON through the event log (`to_record`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar


class DrumlineError(Exception):
    """Something failed; the message says what, and the way out."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def to_record(self) -> dict[str, object]:
        """Return the error as plain JSON values, for the event log."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "exit_code": self.exit_code,
            **{
                key: value if isinstance(value, str | int | float | None) else str(value)
                for key, value in self.fields.items()
            },
        }


class UsageError(DrumlineError):
    """The command line was off: an unknown option, a bad value, no such run."""

    exit_code = 2


class SpecError(UsageError):
    """A spec that cannot be what was meant."""


class RunDirError(DrumlineError):
    """A run directory that cannot be made, read or resumed."""


class DataError(DrumlineError):
    """A data set that is missing or damaged."""


class CheckpointError(DrumlineError):
    """A checkpoint that cannot be written or trusted."""


class CommError(DrumlineError):
    """Ranks that cannot find or understand each other."""


class PeerError(CommError):
    """A rank that the others wait for in vain."""


class DivergenceError(DrumlineError):
    """A loss that is NaN or infinite."""


class ClusterError(DrumlineError):
    """A cluster that cannot be made, reached or removed."""


class CloudError(ClusterError):
    """A cloud that refuses."""


class HostError(ClusterError):
    """A node that does not answer as it should."""


class LabError(DrumlineError):
    """A lab whose experiments failed, or a report that is not what was written."""


class InterruptError(DrumlineError):
    """Somebody pressed Ctrl-C."""

    exit_code = 130


class WorkerError(DrumlineError):
    """A rank that died."""


class RankTimeoutError(WorkerError, TimeoutError):
    """Ranks that did not end in time."""


ERRORS: Mapping[str, type[DrumlineError]] = MappingProxyType(
    {
        name: kind
        for name, kind in list(globals().items())
        if isinstance(kind, type) and issubclass(kind, DrumlineError)
    }
)
"""by name, to read an error back from a record"""
