"""`AgentTask`: what the launcher asks an agent to do, as a line of JSON. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from drumline.core.json_lines import Record
from drumline.core.rundir import RunDir

MAX_WORKERS = 100
"""per node; more would only wait for cores"""

PRELOAD = ("drumline.trainer",)
"""what every training run's worker server imports before it forks workers"""

LONG_TIMEOUT_S = 300.0
"""how long ranks wait for what only one of them does, or each at its own pace: loading torch and
data, writing a checkpoint. A rank that stops answering in a collective has `timeout_s`"""

MODULE = "-m"
"""in front of a module's name, where a script's path would be"""

SCRATCH = "DRUMLINE_SCRATCH"
"""names the launch's temporary folder, where errors go that the run directory cannot take"""

RANK_OPTIONS = "DRUMLINE_WORDS"
"""tells a rank that was started on its own with which options, as JSON; all compare theirs"""


class OnHang(StrEnum):
    """Whether a hang of a script's ranks also ends them."""

    REPORT = "report"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class AgentTask(Record):
    """One node's part of a run."""

    run: str
    """the path of the run directory"""
    node: int = 0
    nodes: int = 1
    workers: int
    """ranks on each node"""
    restarts: int = 0
    """how often workers may be started again"""
    timeout_s: float
    """how long agents wait for each other"""
    cpu: float = 1.0
    """the share of CPU time that the workers of this node get"""
    script: tuple[str, ...] = ()
    """a script or MODULE and a module, with arguments; empty: train by the run's spec"""
    observed: bool = False
    """whether a script's steps and collectives are noted"""
    function: str = ""
    """the folder of a function to call (`core/calls.py`), in place of both"""
    preload: tuple[str, ...] = PRELOAD
    """what the worker server imports before it forks workers"""
    folder: str = ""
    """where the ranks work; empty: where the agent was started"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """of the ranks' environment, for an agent that was started before they were known"""

    @property
    def trains(self) -> bool:
        """Whether the ranks train by the run's spec, not by a program of the user's."""
        return not (self.script or self.function)

    @property
    def run_dir(self) -> RunDir:
        """The run directory."""
        return RunDir(Path(self.run))
