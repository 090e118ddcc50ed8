"""`Lab`: what each of the four brings; everything around it is the same for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from drumline.labs.experiment import Experiment, LabSettings, Results
from drumline.report.page.blocks import Block
from drumline.report.page.table import Table
from drumline.report.page.translator import Text, Translator


@dataclass(kw_only=True)
class WriteUp:
    """What a lab found, for the sections of its report."""

    summary: Text
    """one or two sentences for the top of the page, from the measured numbers"""
    results: list[Block] = field(default_factory=list)
    """tables and pictures"""
    analysis: list[Block] = field(default_factory=list)
    """sentences made from the numbers"""
    tables: list[Table] = field(default_factory=list)
    """all that any of them quotes"""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab."""

    number: int
    experiments: Callable[[LabSettings], Sequence[Experiment]]
    """names what is to be run, in order"""
    code: Sequence[tuple[str, str]]
    """the source that the experiments really use: path and symbol, in reading order"""
    write_up: Callable[[Results, Translator], WriteUp]
    """turns what was measured into tables, pictures and sentences; what failed is left out"""
