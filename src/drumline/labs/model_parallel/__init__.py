"""Lab 4: one model in parts, by layers or inside them, against one process and data parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.core.lab import LabSettings
from drumline.labs.experiment import Experiment
from drumline.labs.lab import WriteUp
from drumline.labs.model_parallel.experiments import plan_experiments
from drumline.labs.model_parallel.findings import write_up
from drumline.labs.results import Results
from drumline.report.page.prose import Tongue


class ModelParallelLab:
    """The fourth lab."""

    number = 4

    def experiments(self, settings: LabSettings) -> Sequence[Experiment]:
        """Name the runs: one model in many forms."""
        return plan_experiments(settings)

    def code(self) -> Sequence[tuple[str, str]]:
        """Name what cuts a model, and what makes its parts work at once."""
        return (
            ("parallel/split/balance.py", "partition"),
            ("parallel/rpc/parts.py", "Part.take"),
            ("parallel/rpc/parts.py", "hand_on"),
            ("parallel/rpc/leader.py", "RpcModel.train"),
            ("parallel/pipeline/schedule.py", "gpipe"),
            ("parallel/pipeline/schedule.py", "one_f_one_b"),
            ("parallel/pipeline/schedule.py", "interleaved"),
            ("parallel/pipeline/executor.py", "Executor._carry_out"),
            ("parallel/tensor/linear.py", "ColumnLinear"),
            ("parallel/tensor/linear.py", "RowLinear"),
        )

    def write_up(self, results: Results, say: Tongue) -> WriteUp:
        """Turn what was measured into tables, pictures and sentences."""
        return write_up(results, say)


LAB = ModelParallelLab()
