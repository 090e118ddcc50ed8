"""Lab 3, data parallelism: who sees which samples, what it does to learning, what it gains."""

from __future__ import annotations

from drumline.labs.chapter import Chapter, Lab
from drumline.labs.data_parallel.experiments import experiments
from drumline.labs.data_parallel.learning import write_averaging, write_learning
from drumline.labs.data_parallel.partitions import write_partitions
from drumline.labs.data_parallel.scaling import write_batches, write_scaling
from drumline.labs.repeats import ranked
from drumline.report.page.translator import Sentence


def summarize(chapter: Chapter) -> Sentence | None:
    """Say what came out, as far as it was measured."""
    said = []
    if "strategies" in chapter.tables:
        rows = chapter.tables["strategies"].records
        worst = ranked(rows, lambda row: row.accuracy)
        best = ranked(rows, lambda row: row.accuracy, reverse=True)
        if len(best) > 1:
            said.append(chapter.write("strategies", best=best[0], worst=worst[0], count=len(best)))
    if "scaling" in chapter.tables:
        many = [row for row in chapter.tables["scaling"].records if row.workers > 1]
        fastest = ranked(many, lambda row: row.speedup, reverse=True)
        if fastest:
            said.append(chapter.write("scaling", best=fastest[0]))
    return chapter.concat(said) if said else None


LAB = Lab(
    number=3,
    name="data_parallel",
    experiments=experiments,
    code=(
        ("data/partition.py", "partition"),
        ("data/partition.py", "_by_label"),
        ("data/partition.py", "_dirichlet"),
        ("data/partition.py", "BatchPlan"),
        ("data/sampler.py", "BatchSampler"),
        ("data/coverage.py", "coverage"),
        ("train/train.py", "ReplicaRunner.forward_backward"),
        ("parallel/data_parallel.py", "DataParallel"),
    ),
    chapters={
        "partitions": write_partitions,
        "learning": write_learning,
        "averaging": write_averaging,
        "scaling": write_scaling,
        "batches": write_batches,
    },
    summarize=summarize,
)
