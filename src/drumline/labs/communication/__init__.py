"""Lab 2: how gradients are averaged, what that costs, and what a bottleneck node does to it."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.core.lab import LabSettings
from drumline.labs.communication.experiments import plan_experiments
from drumline.labs.communication.findings import write_up
from drumline.labs.experiment import Experiment
from drumline.labs.lab import WriteUp
from drumline.labs.results import Results
from drumline.report.page.prose import Tongue


class CommunicationLab:
    """The second lab."""

    number = 2

    def experiments(self, settings: LabSettings) -> Sequence[Experiment]:
        """Name the benches and the runs."""
        return plan_experiments(settings)

    def code(self) -> Sequence[tuple[str, str]]:
        """Name what averages gradients."""
        return (
            ("comm/ring.py", "all_reduce"),
            ("comm/ring.py", "chunked_all_reduce"),
            ("comm/ring.py", "reduce_scatter"),
            ("comm/ring.py", "all_gather"),
            ("comm/primitives.py", "reduce_broadcast"),
            ("comm/primitives.py", "gather_scatter"),
            ("comm/primitives.py", "all_gather"),
            ("comm/linear.py", "all_reduce"),
            ("parallel/aggregate.py", "Aggregator"),
            ("parallel/compress.py", "pack"),
        )

    def write_up(self, results: Results, say: Tongue) -> WriteUp:
        """Turn what was measured into tables, pictures and sentences."""
        return write_up(results, say)


LAB = CommunicationLab()
