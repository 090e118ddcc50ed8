"""Lab 2: how gradients are averaged, what that costs, and what a bottleneck node does to it."""

from __future__ import annotations

from drumline.labs.chapter import Lab
from drumline.labs.communication.collectives import write_collectives, write_strategies
from drumline.labs.communication.experiments import plan_experiments
from drumline.labs.communication.training import write_choices, write_delays

LAB = Lab(
    number=2,
    name="communication",
    experiments=plan_experiments,
    code=(
        ("comm/ring.py", "all_reduce"),
        ("comm/ring.py", "chunked_all_reduce"),
        ("comm/ring.py", "reduce_scatter"),
        ("comm/ring.py", "all_gather"),
        ("comm/primitives.py", "reduce_broadcast"),
        ("comm/primitives.py", "gather_scatter"),
        ("comm/primitives.py", "all_gather"),
        ("comm/linear.py", "all_reduce"),
        ("parallel/aggregate.py", "Aggregator"),
        ("parallel/aggregate.py", "pack"),
    ),
    chapters={
        "collectives": write_collectives,
        "strategies": write_strategies,
        "delays": write_delays,
        "choices": write_choices,
    },
)
