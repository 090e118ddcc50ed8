"""A training job on a cluster, shown as one on this machine: its events are pulled as they grow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rich.console import Console

from drumline.cli.cluster_pull import default_folder, note_place
from drumline.cli.printing import print_result
from drumline.cli.train import title_of
from drumline.cluster.files.pull import Puller
from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.remote import Remote
from drumline.core.errors import ClusterError
from drumline.core.rundir import RunDir
from drumline.report.display import Display, open_display
from drumline.report.progress import RunProgress
from drumline.spec.load import read_run_spec

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
                    if self._display is not None:
                        self._display.close()
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
            progress = RunProgress(self.run, spec.world_size, nodes=spec.nodes)
            named = RunDir(Path(self._job_id))
            self._display = open_display(Console(), progress, title_of(named, spec))
        if self._display is not None:
            self._display.update()


def _is_drawn(name: str) -> bool:
    return name in _SMALL or name.startswith(_GROWING)
