"""Lab 4: one model in parts, by layers or inside them, against one process and data parallelism."""

from drumline.labs.chapter import Lab
from drumline.labs.model_parallel.chapters import (
    summarize,
    write_costs,
    write_forms,
    write_losses,
    write_microbatches,
    write_trace,
)
from drumline.labs.model_parallel.experiments import plan_experiments

LAB = Lab(
    number=4,
    experiments=plan_experiments,
    chapters={
        "forms": write_forms,
        "microbatches": write_microbatches,
        "trace": write_trace,
        "costs": write_costs,
        "losses": write_losses,
    },
    summarize=summarize,
)
