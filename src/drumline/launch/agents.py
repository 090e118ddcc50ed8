"""The agents of a run: one process per node, started together and ended together.

    drumline (this process, no torch)
      └─ agent of node k          python -m drumline.agent, a session of its own: Ctrl-C reaches us
           └─ worker server       has imported torch
                ├─ rank …         forked from the server
                └─ rank …

The first agent may start before it is known what to do (`warm_up`): importing torch takes longer
than reading a spec, so both happen at once. An agent reads its task from its standard input.

Each process asks the kernel to end it with its parent, so that even `kill -9` of any of them leaves
nothing running below it. Several nodes are simulated ones: each agent starts inside its node, and
the network (`network.py`) ends with the agents.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING, Self

from drumline.core.errors import WorkerError
from drumline.core.nodes import NodePlan
from drumline.core.scratch import Scratch
from drumline.core.task import PRELOAD, SCRATCH, AgentTask
from drumline.launch.manifest import note_network
from drumline.launch.network import Network

if TYPE_CHECKING:
    from drumline.core.rundir import RunDir

_GRACE_S = 8.0  # the agents give workers five seconds of their own


class Agents:
    """The agents of all nodes; leaving the context ends them, whatever happened."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._outputs: list[IO[bytes]] = []
        self._run: RunDir | None = None
        self._network: Network | None = None
        self.scratch = Scratch()
        """for what the agents need while they run, and for ranks' errors that fit nowhere else"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.scratch.remove()

    def warm_up(self) -> None:
        """Start the first agent ahead of its task, with what every training run preloads."""
        self._spawn(PRELOAD)

    def start(self, run: RunDir, tasks: list[AgentTask], plans: tuple[NodePlan, ...] = ()) -> None:
        """Give every agent its task; those that do not run yet are started.

        Args:
            run: the run.
            tasks: one for each agent, in node order.
            plans: the simulated nodes to make first, where there are several.
        """
        if plans:
            self.stop()  # one that was started ahead is outside of the nodes
            self._processes.clear()
            self._network = Network(plans)
            note_network(run, self._network.describe())
        self._run = run
        for task in tasks:
            if task.node == len(self._processes):
                self._spawn(task.preload, threads=max(1, (os.cpu_count() or 1) // task.workers))
            stdin = self._processes[task.node].stdin
            assert stdin is not None
            with contextlib.suppress(BrokenPipeError), stdin:  # one that has died is found below
                stdin.write(task.dump().encode() + b"\n")

    def running(self) -> bool:
        """Whether the run goes on: until all agents have ended, or one has failed."""
        codes = self.exit_codes
        return None in codes and not any(codes) and self._network_holds()

    def check_network(self) -> None:
        """Tell if the network of simulated nodes went away.

        Raises:
            WorkerError: the process that holds it was ended by somebody.
        """
        if not self._network_holds():
            raise WorkerError(
                "the process that holds the simulated network has ended, and all links with it; "
                "nothing is left behind: start the run again"
            )

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each agent, None while it runs."""
        return [process.poll() for process in self._processes]

    def stop(self) -> None:
        """End what still runs: politely, and after a bounded wait, or a second Ctrl-C, by force."""
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in self._processes:
                if process.poll() is None:
                    process.terminate()
            deadline = time.monotonic() + _GRACE_S
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            _kill_session(process)
        if self._network is not None:
            self._network.close()
            self._network = None
        self._keep_outputs()

    def _network_holds(self) -> bool:
        return self._network is None or self._network.holds()

    def _spawn(self, preload: tuple[str, ...], threads: int | None = None) -> None:
        environment = {**os.environ, SCRATCH: str(self.scratch.path)}
        enter: tuple[str, ...] = ()
        if self._network is not None:
            environment |= self._network.environment
            enter = self._network.enter(len(self._processes))
        if threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed in _keep_outputs
        self._outputs.append(output)
        self._processes.append(
            subprocess.Popen(
                [
                    *(*enter, sys.executable, "-m", "drumline.agent"),
                    *(str(os.getpid()), ",".join(preload)),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        )

    def _keep_outputs(self) -> None:
        """Put what agents have printed into the run's logs, where it still has some."""
        for node, output in enumerate(self._outputs):
            output.seek(0)
            content = output.read()
            output.close()
            if self._run is not None and content and self._run.logs.is_dir():
                with contextlib.suppress(OSError):
                    (self._run.logs / f"node-{node}.log").write_bytes(content)
        self._outputs.clear()


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of an agent and of everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
