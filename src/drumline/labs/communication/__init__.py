"""Lab 2: how gradients are averaged, what that costs, and what a bottleneck node does to it."""
