"""Lab 2: how gradients are averaged, what that costs, and what a bottleneck node does to it."""

from __future__ import annotations

from drumline.labs.communication.experiments import plan_experiments
from drumline.labs.communication.findings import write_up
from drumline.labs.lab import Lab

LAB = Lab(
    number=2,
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
    write_up=write_up,
)
