"""Lab 3, data parallelism: who sees which samples, what it does to learning, what it gains."""

from drumline.labs.chapter import Lab
from drumline.labs.data_parallel import chapters
from drumline.labs.data_parallel.experiments import plan_experiments

LAB = Lab(
    number=3,
    experiments=plan_experiments,
    chapters={
        "partitions": chapters.write_partitions,
        "learning": chapters.write_learning,
        "averaging": chapters.write_averaging,
        "scaling": chapters.write_scaling,
        "batches": chapters.write_batches,
    },
    summarize=chapters.summarize,
)
