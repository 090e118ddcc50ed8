"""Lab 4: one model in parts, by layers or inside them, against one process and data parallelism."""

from drumline.labs.chapter import Lab
from drumline.labs.model_parallel import chapters
from drumline.labs.model_parallel.experiments import plan_experiments

LAB = Lab(
    number=4,
    experiments=plan_experiments,
    chapters={
        "forms": chapters.write_forms,
        "microbatches": chapters.write_microbatches,
        "trace": chapters.write_trace,
        "costs": chapters.write_costs,
        "losses": chapters.write_losses,
    },
    summarize=chapters.summarize,
)
