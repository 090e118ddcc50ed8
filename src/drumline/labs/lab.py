"""`Lab`: what each of the four brings; everything around it is the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drumline.core.lab import LabSettings
from drumline.labs.experiment import Experiment
from drumline.labs.results import Results
from drumline.report.page.blocks import Block
from drumline.report.page.prose import Said, Tongue
from drumline.report.page.sheet import Sheet


@dataclass(kw_only=True)
class WriteUp:
    """What a lab found, for the sections of its report."""

    summary: Said
    """one or two sentences for the top of the page, from the measured numbers"""
    results: list[Block] = field(default_factory=list)
    """tables and pictures"""
    analysis: list[Block] = field(default_factory=list)
    """sentences made from the numbers"""
    sheets: list[Sheet] = field(default_factory=list)
    """all that any of them quotes"""


class Lab(Protocol):
    """One lab."""

    number: int

    def experiments(self, settings: LabSettings) -> Sequence[Experiment]:
        """Name what is to be run, in order."""
        ...

    def code(self) -> Sequence[tuple[str, str]]:
        """Name the source that the experiments really use: path and symbol, in reading order."""
        ...

    def write_up(self, results: Results, say: Tongue) -> WriteUp:
        """Turn what was measured into tables, pictures and sentences; what failed is left out."""
        ...
