"""Lab 3, data parallelism: who sees which samples, what it does to learning, what it gains."""

from drumline.labs.chapter import Lab
from drumline.labs.data_parallel.experiments import plan_experiments
from drumline.labs.data_parallel.learning import write_averaging, write_learning
from drumline.labs.data_parallel.partitions import write_partitions
from drumline.labs.data_parallel.scaling import summarize, write_batches, write_scaling

LAB = Lab(
    number=3,
    experiments=plan_experiments,
    chapters={
        "partitions": write_partitions,
        "learning": write_learning,
        "averaging": write_averaging,
        "scaling": write_scaling,
        "batches": write_batches,
    },
    summarize=summarize,
)
