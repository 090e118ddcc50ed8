"""What `submit` does: files, checkpoints, the job, what it prints, and how it ends.

A job is followed to its end over as many connections as that takes. One that trains by a spec is
shown as a run on this machine would be: its events are pulled as they grow (`TrainingView`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from drumline.cli.connection import Printer, connected, print_end, print_note
from drumline.cli.display import Display, build_display, print_result
from drumline.cli.pull import default_folder, note_place, pulled_folder
from drumline.cluster.files.package import push_package
from drumline.cluster.files.pull import Puller
from drumline.cluster.files.storage import keep_copies
from drumline.cluster.files.sync import sync_folder
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.follow import JobFollower
from drumline.cluster.jobs.resume import offer_checkpoints
from drumline.cluster.jobs.submit import Request, start_job, submit
from drumline.cluster.life.limits import GONE
from drumline.cluster.spec import ClusterSpec, find_cluster
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.remote import NodeSession, Remote
from drumline.core.errors import ClusterError, HostError, InterruptError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.core.rundir import RunDir
from drumline.core.task import MODULE
from drumline.node.job import JobState
from drumline.node.storage import shown_url
from drumline.spec.load import dump_spec, load_spec, read_run_spec

_QUEUED_S = 3.0
_SPEC_ENDS = (".yaml", ".yml")


def submit_command(
    script: str,
    args: list[str],
    which: str | None,
    *,
    detach: bool,
    workers: int | None,
    module: bool,
    restarts: int,
    resume: str | None,
) -> None:
    """Run `drumline submit`: run a script or a spec on all nodes of the cluster."""
    spec, home = find_cluster(which)
    if resume is not None and (module or not script.endswith(_SPEC_ENDS)):
        raise UsageError("--resume is for a SPEC.yaml; a script finds its own checkpoints")
    request = _request(spec, script, args, workers=workers, module=module, restarts=restarts)
    submission = Submission(spec=spec, home=home, job_id=request.job_id())
    try:
        code = asyncio.run(submission.run(request, detach=detach, resume=resume))
    except KeyboardInterrupt:
        raise submission.interrupted() from None
    if code:
        sys.exit(code)


@dataclass
class Submission:
    """One job on its way."""

    spec: ClusterSpec
    home: ClusterHome
    job_id: str
    started: bool = False

    async def run(self, request: Request, *, detach: bool, resume: str | None) -> int:
        """Start the job, and follow it to its end, unless it is to go on alone.

        Returns:
            The exit code to pass on.
        """
        view = TrainingView(self.home, self.job_id) if request.spec else None
        following = JobFollower(self.job_id, Printer(), changed=_Phases())
        async with connected(self.spec, self.home) as fleet:
            request = replace(request, code=await self._sync(fleet))
            if resume is not None:
                request = await self._resumed(fleet, request, resume)
            talks: list[NodeSession] = []
            if detach or view is not None:
                await submit(fleet.remotes, request, job_id=self.job_id)
            else:
                talks = await start_job(fleet.remotes, request, self.job_id, follow=True)
            self.started = True
            if detach:
                await self._keep_copies(fleet, check=False)
                print_note(f"{self.job_id} goes on by itself: drumline logs -f {self.job_id}")
                return 0
            keeping = asyncio.create_task(self._keep_copies(fleet))
            try:
                state = await follow_to_end(
                    self.spec, self.home, fleet, following, talks=talks, view=view
                )
                await keeping
            finally:
                keeping.cancel()
        if view is not None and state.phase == "done":
            view.print_result()
        return print_end(self.job_id, state)

    def interrupted(self) -> InterruptError:
        """Say what Ctrl-C has not ended."""
        if not self.started:
            return InterruptError("interrupted; no job was started")
        return InterruptError(
            f"interrupted, but the job goes on: drumline logs -f {self.job_id}, or drumline cancel "
            f"{self.job_id}"
        )

    async def _sync(self, fleet: Fleet) -> str:
        """Bring the folder to all nodes; returns what its content is known by."""
        await fleet.all(push_package)
        found = await sync_folder(
            fleet.remotes,
            Path.cwd(),
            self.home,
            report=lambda who, what: print_note(f"{who}: {what}"),
            apart=self.spec.storage_folder,
        )
        sent = format_bytes(max(each.sent_bytes for each in found))
        files, nodes = counted(found[0].files, "file"), counted(len(found), "node")
        print_note(f"{self.job_id}: {files} on {nodes}, {sent} of them new")
        return found[0].hash

    async def _resumed(self, fleet: Fleet, request: Request, job: str) -> Request:
        place = await offer_checkpoints(
            fleet.leader,
            job,
            pulled=pulled_folder(self.home, job),
            storage=self.spec.storage,
            report=lambda who, what: print_note(f"{who}: {what}"),
        )
        return replace(request, resume=place)

    async def _keep_copies(self, fleet: Fleet, *, check: bool = True) -> None:
        """Let the nodes copy the run to the storage; where they may not, `pull` does it."""
        url = self.spec.storage
        if url is None:
            return
        try:
            await keep_copies(fleet.remotes, url, self.job_id, check=check)
        except HostError as error:
            print_note(
                f"{error.message}; drumline pull copies it from here instead, and so does down"
            )
        else:
            if not check:
                print_note(
                    f"nodes that may write to {shown_url(url)} copy the run there as it grows; "
                    f"drumline pull and drumline down copy what they may not"
                )


class _Phases:
    """Says that a job waits for others, where it does."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, state: JobState) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if state.phase == "queued":
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_QUEUED_S, print_note, "waits for the job before it")


def _request(
    spec: ClusterSpec,
    script: str,
    args: list[str],
    *,
    workers: int | None,
    module: bool,
    restarts: int,
) -> Request:
    wanted = workers if workers is not None else spec.workers
    count = None if wanted == "auto" else int(wanted)
    if script.endswith(_SPEC_ENDS) and not module:
        run = load_spec(Path(script), args)
        return Request(spec=dump_spec(run), title=run.name, workers=count, restarts=restarts)
    if not module and not Path(script).is_file():
        raise UsageError(f"no script {script} here; name one below {Path.cwd()}, or a SPEC.yaml")
    if not module:
        script = path_from_here(script)
    argv = (MODULE, script, *args) if module else (script, *args)
    return Request(argv=argv, workers=count, restarts=restarts)


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


_AGAIN_S, _PAUSE_S = 180.0, 2.0


async def follow_to_end(
    spec: ClusterSpec,
    home: ClusterHome,
    fleet: Fleet,
    following: JobFollower,
    *,
    talks: Sequence[NodeSession] = (),
    view: TrainingView | None = None,
) -> JobState:
    """Follow a submitted job, also where connections are lost: the job does not need us.

    `talks` are nodes that tell of the job already; `view` draws its training.

    Raises:
        HostError: the cluster is gone, or cannot be reached any more.
    """
    try:
        if talks:
            return await following.listen(talks)
        return await _follow(fleet, following, view)
    except HostError as error:
        lost, told, until = error, "", time.monotonic() + _AGAIN_S
    while time.monotonic() < until:
        if not home.read_facts().machines:
            raise HostError(
                f"the cluster {home.name} was removed meanwhile, and {following.job_id} with it; "
                f"what was pulled of it shows: drumline logs {following.job_id}",
                reason=GONE,
            )
        if lost.message != told:
            print_note(f"{lost.message}; connecting again")
        told = lost.message
        try:
            async with connected(spec, home, some=True) as again:
                return await _follow(again, following, view)
        except HostError as error:
            if error.fields.get("reason") == GONE:
                raise
            lost = error
            await asyncio.sleep(_PAUSE_S)
    raise lost


async def _follow(fleet: Fleet, following: JobFollower, view: TrainingView | None) -> JobState:
    shown = contextlib.nullcontext() if view is None else view.shown(fleet.remotes)
    async with shown:
        return await following.run(fleet.remotes)


_EVERY_S = 0.5
_GROWING = ("run/events/", "run/logs/")
_SMALL = ("state.json", "run/spec.yaml", "run/manifest.json", "run/summary.json")


class TrainingView:
    """Pulls a job's run directory while it trains, and draws what is new."""

    def __init__(self, home: ClusterHome, job_id: str) -> None:
        self.folder = default_folder(home, job_id)
        self._home = home
        self._job_id = job_id
        self._display: Display | None = None
        self._opened = contextlib.ExitStack()

    @property
    def run(self) -> RunDir:
        """The run, as far as it is here."""
        return RunDir(self.folder / "run")

    @contextlib.asynccontextmanager
    async def shown(self, remotes: Sequence[Remote]) -> AsyncIterator[None]:
        """Show the run while the context lasts; at the run's end all of it is here."""
        async with Puller(remotes, self._job_id, self.folder) as puller:
            note_place(self._home, self._job_id, self.folder)
            over = asyncio.Event()
            drawing = asyncio.create_task(self._draw(puller, over))
            try:
                yield
            finally:
                over.set()  # a pull that was cut short could not be continued
                try:
                    await drawing
                finally:
                    self._opened.close()
                    self._display = None

    def print_result(self) -> None:
        """Print summary and ledger, where the run has finished."""
        if (self.run.path / "summary.json").exists():
            print_result(self.run, read_run_spec(self.run), as_json=False)

    async def _draw(self, puller: Puller, over: asyncio.Event) -> None:
        """Pull what is drawn, and draw it, until it is over; an ended run's other files then.

        Checkpoints of a run that goes on stay on the nodes: they may be large, and change.
        """
        last = False
        while not last:
            last = over.is_set()
            with contextlib.suppress(ClusterError):  # the job's own connection tells of that
                pulled = await puller.pull(_is_drawn)
                if last and pulled.ended:
                    await puller.pull()
            self._update()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _EVERY_S)

    def _update(self) -> None:
        if self._display is None and self.run.spec_file.exists():
            spec = read_run_spec(self.run)
            display = build_display(Console(), self.run, spec, name=self._job_id)
            self._display = self._opened.enter_context(display)
        if self._display is not None:
            self._display.update()


def _is_drawn(name: str) -> bool:
    return name in _SMALL or name.startswith(_GROWING)
