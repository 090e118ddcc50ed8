"""Lab 2: how gradients are averaged, what that costs, and what a bottleneck node does to it."""

from drumline.labs.chapter import Lab
from drumline.labs.communication.chapters import (
    write_choices,
    write_collectives,
    write_delays,
    write_strategies,
)
from drumline.labs.communication.experiments import plan_experiments

LAB = Lab(
    number=2,
    experiments=plan_experiments,
    chapters={
        "collectives": write_collectives,
        "strategies": write_strategies,
        "delays": write_delays,
        "choices": write_choices,
    },
)
