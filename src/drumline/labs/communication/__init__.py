"""Lab 2: how gradients are averaged, what that costs, and what a bottleneck node does to it."""

from drumline.labs.chapter import Lab
from drumline.labs.communication import chapters
from drumline.labs.communication.experiments import plan_experiments

LAB = Lab(
    number=2,
    experiments=plan_experiments,
    chapters={
        "collectives": chapters.write_collectives,
        "strategies": chapters.write_strategies,
        "delays": chapters.write_delays,
        "choices": chapters.write_choices,
    },
)
