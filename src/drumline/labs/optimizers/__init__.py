"""Lab 1, optimizers: GD, SGD, momentum and Adam, ours beside torch's, on one machine."""

from drumline.labs.chapter import Lab
from drumline.labs.optimizers import chapters
from drumline.labs.optimizers.experiments import plan_experiments

LAB = Lab(
    number=1,
    experiments=plan_experiments,
    chapters={
        "convergence": chapters.write_convergence,
        "engines": chapters.write_engines,
        "profile": chapters.write_profile,
        "rates": chapters.write_rates,
        "sample_order": chapters.write_sample_order,
    },
    summarize=chapters.summarize,
)
