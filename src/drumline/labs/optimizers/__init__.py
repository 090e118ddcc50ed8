"""Lab 1, optimizers: GD, SGD, momentum and Adam, ours beside torch's, on one machine."""

from drumline.labs.chapter import Lab
from drumline.labs.optimizers.convergence import (
    summarize,
    write_convergence,
    write_rates,
    write_sample_order,
)
from drumline.labs.optimizers.cost import write_engines, write_profile
from drumline.labs.optimizers.experiments import plan_experiments

LAB = Lab(
    number=1,
    experiments=plan_experiments,
    chapters={
        "convergence": write_convergence,
        "engines": write_engines,
        "profile": write_profile,
        "rates": write_rates,
        "sample_order": write_sample_order,
    },
    summarize=summarize,
)
