"""`Experiment`: one thing that a lab runs, and what it leaves for the report to read.

    labs/2/runs/<name>/        the run directory of a training run
    labs/2/runs/<name>.json    the document of a bench

A lab names its experiments beforehand; they run one after the other, and the report is written
from what they left. So a report can be made again, in another language say, without measuring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.launch.probe import Watch
from drumline.spec.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run."""

    name: str
    """of its folder, unique in the lab: `adam-seed1`"""
    spec: RunSpec
    may_diverge: bool = False
    """that its loss runs away is a result, and no failure"""
    exact: bool = True
    """whether training again gives the same bits; not where threads add up as they come"""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A bench, or anything else that measures and gives one JSON document."""

    name: str
    measure: Callable[[Watch], dict[str, Any]]
    words: dict[str, Any]
    """its spec as plain values: what it depends on"""


Experiment = Training | Measurement


def runs_folder(folder: Path) -> Path:
    """Return where a lab's experiments leave what they found."""
    return folder / "runs"
