"""What benches made of training runs have in common: progress by cases, folders, failures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from drumline.bench.case_runner import Failure, Runnable
from drumline.cli.bench import watched
from drumline.core.errors import UsageError, WorkerError
from drumline.launch.mpirun import refuse_without_mpi
from drumline.launch.preflight import refuse_without_gpu
from drumline.launch.probe import Progress, Watch


def check_cases(cases: Iterable[Runnable], out: Path | None) -> None:
    """Refuse what cannot run or be kept, before anything is trained.

    Raises:
        UsageError: a folder is taken, or the machine has not what a backend needs.
    """
    for case in cases:
        if out is not None and (out / case.slug).exists():
            raise UsageError(
                f"--out {out}: {out / case.slug} exists already; name a folder of its own"
            )
        refuse_without_gpu(case.spec)
        if case.spec.backend == "mpi":
            refuse_without_mpi()


def raise_failed(failed: Sequence[Failure], ran: int) -> None:
    """Raise one error that names all failed cases.

    Raises:
        WorkerError: there are some.
    """
    if failed:
        told = [f"{failure.case}: {failure.error}" for failure in failed]
        raise WorkerError(f"{len(told)} of {ran} cases failed:\n" + "\n".join(told))


@contextlib.contextmanager
def watched_cases() -> Iterator[Watch]:
    """Show on stderr which case runs: a bar with its steps, or a line for each."""
    console = Console(stderr=True)
    if console.is_terminal:
        with watched() as watch:
            yield watch
        return
    last = None

    def tell(progress: Progress | None) -> None:
        nonlocal last
        if progress is not None and progress.case != last:
            last = progress.case
            say(console, progress.case)

    yield tell


def say(console: Console, text: str) -> None:
    """Print a sentence as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
