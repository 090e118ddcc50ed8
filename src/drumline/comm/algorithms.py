"""Which algorithms there are for each collective: one table, by name.

A collective is a signature, an algorithm a function of that signature; any of them may stand in for
another, and each gives every rank the same bits (`tests/comm/test_collectives.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from drumline.comm import halving, hierarchical, linear, ring, tree

Algorithm = Callable[..., None]

ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "broadcast": {
            "linear": linear.broadcast,
            "tree": tree.broadcast,
            "ring": ring.broadcast,
            "chunked_ring": ring.chunked_broadcast,
            "hierarchical": hierarchical.broadcast,
        },
        "reduce": {
            "linear": linear.reduce,
            "tree": tree.reduce,
            "ring": ring.reduce,
            "chunked_ring": ring.chunked_reduce,
            "hierarchical": hierarchical.reduce,
        },
        "scatter": {"linear": linear.scatter, "tree": tree.scatter},
        "gather": {"linear": linear.gather, "tree": tree.gather},
        "all_gather": {
            "linear": linear.all_gather,
            "ring": ring.all_gather,
            "halving_doubling": halving.all_gather,
        },
        "reduce_scatter": {
            "linear": linear.reduce_scatter,
            "ring": ring.reduce_scatter,
            "halving_doubling": halving.reduce_scatter,
        },
        "all_reduce": {
            "linear": linear.all_reduce,
            "tree": tree.all_reduce,
            "ring": ring.all_reduce,
            "chunked_ring": ring.chunked_all_reduce,
            "halving_doubling": halving.all_reduce,
            "hierarchical": hierarchical.all_reduce,
        },
        "all_to_all": {"linear": linear.all_to_all, "ring": ring.all_to_all},
        "barrier": {
            "linear": linear.barrier,
            "tree": tree.barrier,
            "dissemination": halving.dissemination_barrier,
            "hierarchical": hierarchical.barrier,
        },
    }
)
