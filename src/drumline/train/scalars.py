"""Scalars for TensorBoard, written by the leader after each epoch.

tensorboard's own writer is used, without torch's wrapper, and imported with the first scalar: its
import takes half a second, which no run should wait for before its first step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ScalarWriter:
    """Append scalars to one TensorBoard event file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each curve."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(
            Event(wall_time=time.time(), step=step, summary=Summary(value=points))
        )

    def close(self) -> None:
        """Write out what is pending."""
        if self._writer is not None:
            self._writer.close()
