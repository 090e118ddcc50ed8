"""What both columns share: the spec, the run directory, the event log, errors. No torch."""

from drumline.core.errors import (
    CheckpointError,
    CommError,
    DataError,
    DivergenceError,
    DrumlineError,
    RunDirError,
    SpecError,
    UsageError,
    WorkerError,
)
from drumline.core.events import EventTail, EventWriter, read_events
from drumline.core.rundir import RunDir, list_runs
from drumline.core.spec import RunSpec
from drumline.core.spec_file import dump_spec, load_spec

__all__ = [
    "CheckpointError",
    "CommError",
    "DataError",
    "DivergenceError",
    "DrumlineError",
    "EventTail",
    "EventWriter",
    "RunDir",
    "RunDirError",
    "RunSpec",
    "SpecError",
    "UsageError",
    "WorkerError",
    "dump_spec",
    "list_runs",
    "load_spec",
    "read_events",
]
