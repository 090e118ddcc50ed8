"""Lab 4: one model in parts, by layers or inside them, against one process and data parallelism."""

from __future__ import annotations

from drumline.labs.lab import Lab
from drumline.labs.model_parallel.experiments import plan_experiments
from drumline.labs.model_parallel.findings import write_up

LAB = Lab(
    number=4,
    experiments=plan_experiments,
    code=(
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
    ),
    write_up=write_up,
)
