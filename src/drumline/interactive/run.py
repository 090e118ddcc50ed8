"""`train` and `Run`: a training run from Python, and what came of it.

    run = drumline.train({"model": "mlp", "workers": 4}, "strategy=ring")
    run.summary["accuracy"]
    run.ledger()      where the time went: a table
    run.plot()        losses, and the ledger's bars
    run.model()       with the trained weights

In a notebook progress, tables and figures appear in the cell.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType

import drumline
from drumline.cli.display import Display, build_display
from drumline.core.errors import InterruptError, RunDirError, UsageError
from drumline.core.rundir import RunDir
from drumline.interactive.display import build_notebook_display, in_notebook, render
from drumline.interactive.session import session_agents
from drumline.launcher.mpirun import require_mpirun
from drumline.launcher.runs import RUNS, launched_training, new_run, resumed_run
from drumline.report.ledger.accounts import Ledger
from drumline.report.plots import FigureStyle
from drumline.report.runs.page import draw_overview
from drumline.report.runs.record import RunRecord, Score, read_record
from drumline.report.tables import Accounts, summary_table
from drumline.spec.load import load_spec, read_run_spec
from drumline.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SpecSource = RunSpec | Mapping[str, Any] | str | Path | None
_DPI = 110
_RESUME = "resume="


def train(
    spec: SpecSource = None, *overrides: str, out: str | Path | None = None, quiet: bool = False
) -> Run:
    """Train by a spec, as `drumline train` does; return the run, which has its run directory.

    Blocks until the ranks have ended, and shows their progress meanwhile, in a notebook too. Ctrl-C
    or the interruption of a kernel ends all ranks. Processes stay warm for the next run.

    Args:
        spec: a RunSpec, a mapping of its keys, the path of a YAML file, or an override; resume=RUN
            goes on with a run that has stopped.
        *overrides: `key=value`, as on the command line.
        out: the exact run directory; None: runs/<name>-<n>.
        quiet: show nothing.

    Raises:
        SpecError: the spec cannot be what was meant; nothing was started.
        DrumlineError: what went wrong first, told by rank.
        KeyboardInterrupt: the run was interrupted; says how far it came.
    """
    try:
        with (
            _opened_run(spec, overrides, None if out is None else Path(out)) as (run, settled),
            session_agents(settled.nodes) as agents,
        ):
            display = None if quiet else _build_display(run, settled)
            shown: AbstractContextManager[object] = display or nullcontext()
            try:
                with launched_training(run, settled, agents) as polls, shown:
                    for _ in polls:
                        if display is not None:
                            display.update()
            except KeyboardInterrupt:
                raise InterruptError(f"interrupted; what there is of it is {run.path}") from None
    except InterruptError as error:  # noted in the run; `except Exception` must not catch it
        raise KeyboardInterrupt(error.message) from None
    return Run(run.path)


@contextmanager
def _opened_run(
    spec: SpecSource, overrides: Sequence[str], out: Path | None
) -> Iterator[tuple[RunDir, RunSpec]]:
    """Make a run directory, or hold the one that is resumed."""
    if isinstance(spec, str) and spec.startswith(_RESUME):
        if out is not None:
            raise UsageError(f"{spec} brings its own directory; leave out=… out")
        with resumed_run(spec.removeprefix(_RESUME), list(overrides), root=RUNS) as found:
            yield found
        return
    settled = read_spec_source(spec, overrides)
    if settled.backend == "mpi":
        require_mpirun()
    with new_run(settled, out) as run:
        yield run, settled


def read_spec_source(spec: SpecSource, overrides: Sequence[str] = ()) -> RunSpec:
    """Read the spec that `train` was given, in whatever form.

    Raises:
        SpecError: it makes none; says what is wrong, and the way out.
    """
    if isinstance(spec, RunSpec):
        return load_spec(spec.model_dump(mode="json"), overrides)
    if not isinstance(spec, str):
        return load_spec(spec, overrides)
    if "=" in spec and not Path(spec).is_file():
        return load_spec(None, (spec, *overrides))
    return load_spec(Path(spec), overrides)


def _build_display(run: RunDir, spec: RunSpec) -> Display:
    if in_notebook():
        display = build_notebook_display(run, spec)
    else:
        display = build_display(Console(), run, spec)
    display.progress.skip_to_now()  # of a run that is resumed
    return display


class Shown:
    """Something with a table, which is its text, and in a notebook the same in colour."""

    def table(self) -> RenderableType:
        """Return what rich draws."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return render(self.table())[0]

    def _repr_html_(self) -> str:
        return render(self.table())[1]


class RunLedger(Shown, Ledger):
    """A run's ledger, that shows itself; `ranks`, `lost_s`, `blame`, `parts` are its numbers."""

    def __init__(self, accounts: Accounts) -> None:
        super().__init__(**vars(accounts.ledger))
        self._accounts = accounts

    def table(self) -> RenderableType:
        """Return the table of `drumline show`."""
        return self._accounts.table()


class Run(Shown):
    """A training run, by its run directory or its name under runs/.

    Raises:
        UsageError: there is no such run.
    """

    def __init__(self, path: str | Path) -> None:
        self._run = RunDir.open(str(path), root=RUNS)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    @cached_property
    def spec(self) -> RunSpec:
        """The resolved spec."""
        return read_run_spec(self._run)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The result: steps, loss, accuracy, samples_per_s, weights_sha256 and more."""
        summary = self._run.read_json("summary.json")
        if summary is None:
            raise RunDirError(f"{self.path} has no summary.json: the run has not finished")
        return summary

    @property
    def losses(self) -> list[float]:
        """The loss of each step, over the whole batch."""
        return [point.loss for point in self._record.curve]

    @property
    def scores(self) -> list[Score]:
        """What each evaluation on the test set found: step, samples, seconds, and the figures."""
        return self._record.scores

    def ledger(self) -> RunLedger:
        """Return where the time of each rank went."""
        return RunLedger(Accounts.of(self._record))

    def plot(self, *others: Run) -> Figure:
        """Draw the losses, and what a step of each rank is made of; other runs beside this one."""
        style = FigureStyle()
        with style.drawing():
            figure = draw_overview([run._record for run in (self, *others)], style)
        # shown inline, whether pyplot has told the notebook of its figures or not
        setattr(figure, "_repr_png_", partial(_to_png, figure))  # noqa: B010
        return figure

    def model(self) -> Any:
        """Build the `nn.Module`, with the weights of the newest checkpoint; see `load_model`."""
        return drumline.load_model(self.path)

    def table(self) -> RenderableType:
        """Return ledger and summary, as the command prints them."""
        shown = [Accounts.of(self._record).table()]
        if self._run.read_json("summary.json") is not None:
            shown.append(summary_table(self.summary, str(self.path)))
        return Group(*shown)

    @cached_property
    def _record(self) -> RunRecord:
        return read_record(self._run)


def _to_png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()
