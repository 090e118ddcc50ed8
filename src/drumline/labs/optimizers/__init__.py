"""Lab 1, optimizers: GD, SGD, momentum and Adam, ours beside torch's, on one machine."""

from drumline.labs.chapter import Lab
from drumline.labs.optimizers import convergence, cost
from drumline.labs.optimizers.experiments import plan_experiments

LAB = Lab(
    number=1,
    experiments=plan_experiments,
    chapters={
        "convergence": convergence.write_convergence,
        "engines": cost.write_engines,
        "profile": cost.write_profile,
        "rates": convergence.write_rates,
        "sample_order": convergence.write_sample_order,
    },
    summarize=convergence.summarize,
)
