"""What `submit` does: files, checkpoints, the job, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.cli.cluster_connection import connected
from drumline.cli.cluster_following import follow_to_end
from drumline.cli.cluster_pull import pulled_folder
from drumline.cli.cluster_training import TrainingView
from drumline.cli.job_words import Printer, say, tell_end
from drumline.cluster.files.package import push_package
from drumline.cluster.files.storage import keep_copies
from drumline.cluster.files.sync import sync_folder
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.follow import JobFollower
from drumline.cluster.jobs.resume import offer_checkpoints
from drumline.cluster.jobs.submit import Request, submit, submit_and_follow
from drumline.cluster.spec import ClusterSpec, find_cluster
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.remote import NodeSession
from drumline.core.errors import HostError, InterruptError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.core.task import MODULE
from drumline.node.job import JobState
from drumline.node.storage import shown_url
from drumline.spec.load import dump_spec, load_spec

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
    """Run a script or a spec on all nodes."""
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
            sessions: list[NodeSession] = []
            if detach or view is not None:
                await submit(fleet.remotes, request, job_id=self.job_id)
            else:
                sessions = await submit_and_follow(fleet.remotes, request, self.job_id)
            self.started = True
            if detach:
                await self._keep_copies(fleet, check=False)
                say(f"{self.job_id} goes on by itself: drumline logs -f {self.job_id}")
                return 0
            keeping = asyncio.create_task(self._keep_copies(fleet))
            try:
                state = await follow_to_end(
                    self.spec, self.home, fleet, following, sessions=sessions, view=view
                )
                await keeping
            finally:
                keeping.cancel()
        if view is not None and state.phase == "done":
            view.print_result()
        return tell_end(self.job_id, state)

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
            say=lambda who, what: say(f"{who}: {what}"),
            apart=self.spec.storage_folder,
        )
        sent = format_bytes(max(each.sent_bytes for each in found))
        files, nodes = counted(found[0].files, "file"), counted(len(found), "node")
        say(f"{self.job_id}: {files} on {nodes}, {sent} of them new")
        return found[0].hash

    async def _resumed(self, fleet: Fleet, request: Request, job: str) -> Request:
        place = await offer_checkpoints(
            fleet.leader,
            job,
            pulled=pulled_folder(self.home, job),
            storage=self.spec.storage,
            say=lambda who, what: say(f"{who}: {what}"),
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
            say(f"{error.message}; drumline pull copies it from here instead, and so does down")
        else:
            if not check:
                say(
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
            self._timer = loop.call_later(_QUEUED_S, say, "waits for the job before it")


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
    """Return a script's path from this folder, which is all of this machine that travels.

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
