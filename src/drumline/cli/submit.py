"""What `submit` does, and prints: the job's lines, or its run as one on this machine is shown."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from drumline.cli.cluster_display import Printer, print_end, print_note
from drumline.cli.commands.jobs import SubmitOptions
from drumline.cli.commands.train import ObserveOptions
from drumline.cli.display import Display, build_display, print_result
from drumline.cluster.jobs.submit import JobSubmission
from drumline.cluster.spec import ClusterSpec, find_cluster
from drumline.core.errors import InterruptError, UsageError
from drumline.core.rundir import RunDir
from drumline.core.task import MODULE
from drumline.node.job import JobState, Request
from drumline.report.progress import RunProgress
from drumline.spec.load import dump_spec, load_spec, read_run_spec

_SPEC_ENDS = (".yaml", ".yml")


def submit_command(
    script: str,
    args: list[str],
    which: str | None,
    options: SubmitOptions,
    observe: ObserveOptions,
) -> None:
    """Run `drumline submit`: run a script or a spec on all nodes of the cluster."""
    trains = script.endswith(_SPEC_ENDS) and not options.module
    if trains and observe != ObserveOptions():
        raise UsageError(
            "--no-ledger, --hang-after and --on-hang are for scripts: how long the ranks of a spec "
            "wait for each other is its timeout_s; leave them out"
        )
    if options.resume is not None and not trains:
        raise UsageError("--resume is for a SPEC.yaml; a script finds its own checkpoints")
    spec, home = find_cluster(which)
    request = _request(spec, script, args, options, observe)
    submission = JobSubmission(spec, home, request, note=print_note)
    job_id = submission.job_id
    view = None
    if request.spec or observe.ledger:
        view = JobView(submission.folder, trains=bool(request.spec))
    try:
        state = submission.run(Printer(), view=view, detach=options.detach, resume=options.resume)
    except KeyboardInterrupt:
        raise InterruptError(
            f"interrupted, but the job goes on: drumline logs -f {job_id}, or drumline cancel "
            f"{job_id}"
            if submission.started
            else "interrupted; no job was started"
        ) from None
    if state is None:
        print_note(f"{job_id} goes on by itself: drumline logs -f {job_id}")
        return
    run = RunDir(submission.folder / "run")
    if state.phase == "done" and (run.path / "summary.json").exists():
        print_result(run)
    if code := print_end(job_id, state):
        sys.exit(code)


def _request(
    spec: ClusterSpec,
    script: str,
    args: list[str],
    options: SubmitOptions,
    observe: ObserveOptions,
) -> Request:
    module, restarts = options.module, options.restarts
    wanted = options.workers if options.workers is not None else spec.workers
    count = None if wanted == "auto" else int(wanted)
    if script.endswith(_SPEC_ENDS) and not module:
        run = load_spec(Path(script), args)
        return Request(spec=dump_spec(run), title=run.name, workers=count, restarts=restarts)
    if not module and not Path(script).is_file():
        raise UsageError(f"no script {script} here; name one below {Path.cwd()}, or a SPEC.yaml")
    return Request(
        argv=(MODULE, script, *args) if module else (path_from_here(script), *args),
        workers=count,
        restarts=restarts,
        observed=observe.ledger,
        hang_after_s=observe.hang_after,
        on_hang=observe.on_hang,
    )


def path_from_here(script: str) -> str:
    """Return a submitted script's path from this folder, all of this machine that travels.

    Raises:
        UsageError: it is elsewhere; one by its whole path may be on the nodes, too.
    """
    path = Path(script)
    inside = os.path.relpath(path.parent.resolve() / path.name, Path.cwd().resolve())
    if not inside.startswith("../"):
        return inside
    if path.is_absolute():
        return script
    raise UsageError(
        f"{script} is outside of {Path.cwd()}, which alone travels to the nodes; go to a folder "
        f"that has it inside"
    )


class JobView:
    """Shows a job's run while it is pulled (`RunView`): a script's without a table."""

    def __init__(self, folder: Path, *, trains: bool) -> None:
        self.folder = folder
        self.results = trains
        self._run = RunDir(folder / "run")
        self._display: Display | None = None
        self._opened = contextlib.ExitStack()

    def update(self) -> None:
        """Show what is new, as soon as it is known what the run is."""
        if self._display is None and (display := self._build()) is not None:
            self._display = self._opened.enter_context(display)
        if self._display is not None:
            self._display.update()

    def _build(self) -> Display | None:
        if self.results:
            if not self._run.spec_file.exists():
                return None
            spec = read_run_spec(self._run)
            return build_display(Console(), self._run, spec, name=self.folder.name)
        with contextlib.suppress(OSError, ValueError):
            state = JobState.from_json(json.loads((self.folder / "state.json").read_text()))
            manifest = json.loads((self._run.path / "manifest.json").read_text())
            if ranks := manifest["nodes"] * (state.workers or 0):
                return Display(Console(stderr=True), RunProgress(self._run, ranks))
        return None

    def close(self) -> None:
        """End the display; another `update` opens a new table."""
        self._opened.close()
        if self.results:
            self._display = None
