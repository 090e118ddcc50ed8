"""Lab 3, data parallelism: who sees which samples, what it does to learning, what it gains."""

from drumline.labs.chapter import Lab
from drumline.labs.data_parallel import learning, partitions, scaling
from drumline.labs.data_parallel.experiments import plan_experiments

LAB = Lab(
    number=3,
    experiments=plan_experiments,
    chapters={
        "partitions": partitions.write_partitions,
        "learning": learning.write_learning,
        "averaging": learning.write_averaging,
        "scaling": scaling.write_scaling,
        "batches": scaling.write_batches,
    },
    summarize=scaling.summarize,
)
