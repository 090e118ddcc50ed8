"""How a model becomes stages: layers found in its forward, shared out, made into modules."""

from drumline.parallel.split.balance import (
    Microbatch,
    SumLoss,
    count_bytes,
    measure_times,
    parse_balance,
    partition,
)
from drumline.parallel.split.layers import Layer, find_layers
from drumline.parallel.split.stage import Chunks, build_stage
from drumline.parallel.tied import tied_names

__all__ = [
    "Chunks",
    "Layer",
    "Microbatch",
    "SumLoss",
    "build_stage",
    "count_bytes",
    "find_layers",
    "measure_times",
    "parse_balance",
    "partition",
    "tied_names",
]
