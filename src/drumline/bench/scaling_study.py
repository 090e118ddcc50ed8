"""`Study`: all runs of a bench of scaling, by what they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drumline.bench.scaling_cases import ScalingCase
from drumline.bench.scaling_times import RunTimes
from drumline.core.scaling_bench import Count, Mode, ScalingSpec


@dataclass
class Study:
    """The cases, and the runs of each that went well."""

    spec: ScalingSpec
    cases: Sequence[ScalingCase]
    cores: int
    runs: dict[str, dict[int, RunTimes]] = field(default_factory=dict)
    """by the case's label, then by round"""

    def add(self, case: ScalingCase, number: int, times: RunTimes) -> None:
        """Note a run."""
        own = self.runs.setdefault(case.label, {})
        own[number] = times
        self.runs[case.label] = dict(sorted(own.items()))

    def find(self, mode: Mode, kind: str, count: Count) -> ScalingCase | None:
        """Return the case of a series that has so many ranks; None: it was never measured."""
        for case in self.cases:
            if case.serves(mode, kind) and case.count == count and case.label in self.runs:
                return case
        return None

    def base(self, mode: Mode, kind: str) -> ScalingCase | None:
        """Return the case that a series is held against."""
        return self.find(mode, kind, self.spec.base)

    def of(self, case: ScalingCase) -> list[RunTimes]:
        """Return the runs of a case, in the order of the rounds."""
        return list(self.runs[case.label].values())

    def times(self, case: ScalingCase) -> float:
        """Return how many times as many ranks there are as at the smallest count."""
        return case.count.ranks / self.spec.base.ranks

    def work(self, case: ScalingCase) -> float:
        """Return how many times as much a step is as at the smallest count."""
        return case.spec.data.batch / self.spec.batch

    def speedups(self, case: ScalingCase, base: ScalingCase) -> dict[int, float]:
        """Return the speed-up in each round that has both, so that both saw the same machine."""
        held = self.runs[base.label]
        return {
            number: self.work(case) * held[number].median_s / times.median_s
            for number, times in self.runs[case.label].items()
            if number in held
        }

    def crowded(self, case: ScalingCase) -> bool:
        """Whether the ranks of a case have more threads than there are cores."""
        on_cpu = all(times.on_cpu for times in self.of(case))
        return on_cpu and case.count.ranks * self.spec.threads > self.cores
