"""Lab 3, data parallelism: who sees which samples, what it does to learning, what it gains."""

from __future__ import annotations

from drumline.labs.chapter import write_chapters
from drumline.labs.data_parallel import cases
from drumline.labs.data_parallel.batches import write_batches
from drumline.labs.data_parallel.dealing import write_dealing
from drumline.labs.data_parallel.hiding import write_hiding
from drumline.labs.data_parallel.learning import write_learning
from drumline.labs.data_parallel.scaling import write_scaling
from drumline.labs.data_parallel.summary import summarize
from drumline.labs.lab import Lab, WriteUp
from drumline.labs.results import Results
from drumline.report.page.translator import Translator


def write_up(results: Results, say: Translator) -> WriteUp:
    """Write the chapters that the runs allow."""
    of = cases.plan(results.settings)
    writers = (write_dealing, write_learning, write_hiding, write_scaling, write_batches)
    return write_chapters(writers, results, of, say, lambda tables: summarize(of, tables, say))


LAB = Lab(
    number=3,
    experiments=cases.experiments,
    code=(
        ("data/partition.py", "partition"),
        ("data/partition.py", "_by_label"),
        ("data/partition.py", "_dirichlet"),
        ("data/plan.py", "BatchPlan"),
        ("data/sampler.py", "BatchSampler"),
        ("data/coverage.py", "coverage"),
        ("train/whole.py", "WholeModel.forward_backward"),
        ("parallel/data_parallel.py", "DataParallel"),
    ),
    write_up=write_up,
)
