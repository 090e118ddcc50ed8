"""What each collective does and how each algorithm does it, in a sentence, and where to read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "broadcast": "every rank gets the root's tensor",
        "reduce": "the root gets the sum of all tensors",
        "scatter": "rank k gets the root's part k",
        "gather": "the root gets every rank's part",
        "all_gather": "every rank gets every rank's part",
        "reduce_scatter": "rank k gets the sum of all ranks' part k",
        "all_reduce": "every rank gets the sum of all tensors",
        "all_to_all": "rank k gets part k of every rank",
        "barrier": "nobody goes on before everybody has come",
    }
)
ALGORITHMS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "linear": ("one rank talks to each of the others itself", "comm/linear.py"),
        "tree": ("along a binomial tree: twice as many ranks in each round", "comm/tree.py"),
        "ring": ("each rank sends to its right and receives from its left", "comm/ring.py"),
        "chunked_ring": ("around a ring in pieces, all links busy at once", "comm/ring.py"),
        "halving_doubling": (
            "partners at distance 1, 2, 4, … exchange ever larger parts",
            "comm/halving.py",
        ),
        "dissemination": (
            "each rank tells the one at distance 1, 2, 4, … on its right",
            "comm/halving.py",
        ),
        "hierarchical": (
            "inside each node first, and between nodes only what must cross",
            "comm/hierarchical.py",
        ),
    }
)
