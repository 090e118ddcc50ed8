"""Lab 4: one model in parts, by layers or inside them, against one process and data parallelism."""

from __future__ import annotations

from drumline.labs.chapter import Chapter, Lab
from drumline.labs.model_parallel.costs import (
    write_agreement,
    write_costs,
    write_losses,
    write_trace,
)
from drumline.labs.model_parallel.experiments import plan_experiments
from drumline.labs.model_parallel.pace import write_fastest, write_forms, write_microbatches
from drumline.report.page.translator import Sentence


def summarize(chapter: Chapter) -> Sentence | None:
    """Say which form is fastest, and whether all computed the same."""
    if "forms" not in chapter.tables:
        return None
    found = [write_fastest(chapter), write_agreement(chapter)]
    told = [one for one in found if one is not None]
    if not told:
        return chapter.write("too little")
    return told[0] if len(told) == 1 else chapter.write("both", fastest=told[0], losses=told[1])


LAB = Lab(
    number=4,
    name="model_parallel",
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
        ("parallel/tensor/layers.py", "ColumnLinear"),
        ("parallel/tensor/layers.py", "RowLinear"),
    ),
    chapters={
        "forms": write_forms,
        "microbatches": write_microbatches,
        "trace": write_trace,
        "costs": write_costs,
        "losses": write_losses,
    },
    summarize=summarize,
)
