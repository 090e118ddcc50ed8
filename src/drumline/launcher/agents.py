"""The agents of a run: one process per node, started together and ended together.

    drumline (this process, no torch)
      └─ agent of node k          python -m drumline.agent, a session of its own: Ctrl-C reaches us
           └─ worker server       has imported torch
                ├─ rank …         forked from the server
                └─ rank …

A `NodeAgent` is given one task after the other:

    launcher ──(1) a task, one JSON line──▶ standard input of the agent
             ◀─(2) a line──────────────── a pipe of its own: all ranks of the task ended well
             ──(3) the next task, or the end of input

`Agents` and their worker servers stay for the next run, which then starts without loading torch;
unless a run has failed or was interrupted, or the next one's would be started on other nodes, with
more modules, other variables or in another folder. The first agent may start before it is known
what to do (`warm_up`): importing torch takes longer than reading a spec, so both happen at once.

Each process asks the kernel to end it with its parent, so that even SIGKILL of any of them leaves
nothing running below it. On simulated nodes the network (`network.py`) stays and ends with them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from drumline.core.errors import WorkerError
from drumline.core.json_lines import encode
from drumline.core.nodes import NodePlan
from drumline.core.processes import deferred_signals
from drumline.core.rundir import RunDir
from drumline.core.scratch import Scratch
from drumline.core.task import PRELOAD, SCRATCH, AgentTask
from drumline.launcher.network import Network

_GRACE_S = 8.0  # agents give their workers five seconds


class SessionProcess:
    """A process that leads a session of its own, so that Ctrl-C reaches us alone.

    What it prints, on standard output unless that is another (`stdout`), goes to a file without a
    name, and from there into the `log` of the task that it works at. It inherits the files whose
    descriptors are in `hand_down`, beside its standard ones.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int | None = None,
        hand_down: tuple[int, ...] = (),
    ) -> None:
        self.log: Path | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in close
        self._kept = 0
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output if stdout is None else stdout,
            stderr=self._output,
            env=environment,
            pass_fds=hand_down,
            start_new_session=True,
        )

    def write(self, content: bytes) -> None:
        """Write to its standard input; one that has ended is found elsewhere."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(content)
            self.process.stdin.flush()

    def end_input(self) -> None:
        """Let it find the end of its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def keep_output(self) -> None:
        """Put what was printed since the last time into the log, where its folder still exists."""
        log, self.log = self.log, None
        content = self.read_output()
        if content and log is not None and log.parent.is_dir():
            with contextlib.suppress(OSError):
                log.write_bytes(content)

    def read_output(self) -> bytes:
        """Return what was printed since the last time."""
        file = self._output.fileno()
        # not by reading on: where we are in the file is where the process goes on writing
        content = os.pread(file, os.fstat(file).st_size - self._kept, self._kept)
        self._kept += len(content)
        return content

    def kill_all(self) -> None:
        """Send SIGKILL to it and to everything that it started, and do not wait."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_and_wait(self) -> None:
        """Kill what is left of it, and of everything that it started; returns when it is gone."""
        self.kill_all()
        self.process.wait()
        self.end_input()

    def close(self) -> None:
        """Keep what it has printed, and let go of it; it has ended."""
        self.keep_output()
        self._output.close()


def end_all(sessions: Sequence[SessionProcess], *, within_s: float = _GRACE_S) -> None:
    """End sessions that still run: SIGTERM, and after a bounded wait, or a Ctrl-C, SIGKILL.

    After a Ctrl-C it is SIGINT that comes first: a script may save what it has.
    """
    interrupted = isinstance(sys.exception(), KeyboardInterrupt)
    with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        for session in sessions:
            session.process.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
        deadline = time.monotonic() + within_s
        for session in sessions:
            session.process.wait(max(0.0, deadline - time.monotonic()))
    with deferred_signals():
        for session in sessions:
            session.kill_and_wait()


class NodeAgent(SessionProcess):
    """One agent, its worker server and its ranks; it starts without a task.

    `preload` is what its worker server imports, `enter` what comes before its command, to start it
    on a simulated node.
    """

    def __init__(
        self, preload: tuple[str, ...], environment: Mapping[str, str], enter: tuple[str, ...] = ()
    ) -> None:
        self._preload = frozenset(preload)
        self._traits = _traits(environment)
        reports, theirs = os.pipe()
        os.set_blocking(reports, False)
        self._reports = open(reports, "rb", buffering=0)  # noqa: SIM115  closed in close
        self._done = False
        stdin = _own_stdin()
        agent = [sys.executable, "-m", "drumline.agent", str(os.getpid()), ",".join(preload)]
        try:
            super().__init__(
                [*enter, *agent, str(theirs), str(stdin)],
                environment,
                hand_down=(theirs, stdin),
            )
        finally:
            os.close(theirs)
            os.close(stdin)

    @property
    def exit_code(self) -> int | None:
        """How its task has ended: None while it goes on, 0 when it waits for the next one."""
        code = self.process.poll()  # before we look for a report: it may come, and then the end
        if not self._reports.closed and self._reports.read(16):  # (2)
            self._done = True
        return 0 if self._done else code

    def give(self, run: RunDir, task: AgentTask) -> None:
        """Give it a task of a run; it has none, or has done that well."""
        self._done, self.log = False, run.node_log(task.node)
        self.write(encode(**task.to_json()))  # (1)

    def would_be(self, preload: tuple[str, ...], environment: Mapping[str, str]) -> bool:
        """Whether it lives, and one that is started here and now would be the same or load less."""
        lives = self.process.poll() is None
        return lives and self._preload.issuperset(preload) and self._traits == _traits(environment)

    def close(self) -> None:
        """Keep what it has printed, and let go of what it reported; it has ended."""
        self._done = self.exit_code == 0
        self._reports.close()
        super().close()


def _own_stdin() -> int:
    """Return a descriptor of this process's standard input, which the ranks read on; or of none."""
    try:
        return os.dup(0)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)


def _traits(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return all that an agent, and so its ranks, inherit where they are started."""
    here = os.stat(".")
    return dict(environment), here.st_dev, here.st_ino


_REPORT_S = 1.5  # ranks look for a second which nodes they still reach


class Agents(contextlib.AbstractContextManager["Agents"]):
    """The agents of all nodes; leaving the context ends them, whatever happened."""

    def __init__(self) -> None:
        self._agents: list[NodeAgent] = []
        self._network: Network | None = None
        self._failed_at: float | None = None
        self.scratch = Scratch()
        """for what the agents need while they run, and for ranks' errors that fit nowhere else"""

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self.scratch.remove()

    def warm_up(self) -> None:
        """Start the first agent ahead of its task, with what every training run preloads."""
        self._spawn(PRELOAD, self._environment())

    def start(self, run: RunDir, task: AgentTask, plans: tuple[NodePlan, ...] = ()) -> None:
        """Give every agent its part of a run's task; those that do not run yet are started.

        The task is the first node's; `plans` are the simulated nodes, where there are several.
        """
        environment = self._environment(task)
        same = all(agent.would_be(task.preload, environment) for agent in self._agents)
        here = () if self._network is None else self._network.plans
        if plans != here or not self._network_holds() or not same:
            self.end()
        if plans and self._network is None:
            self._network = Network(plans, trains=task.trains)
        if self._network is not None:
            manifest = run.read_json("manifest.json") or {}
            run.write_json("manifest.json", {**manifest, "network": self._network.describe()})
        environment = self._environment(task)
        for node in range(max(1, len(plans))):
            if node == len(self._agents):
                self._spawn(task.preload, environment)
            own = replace(task, node=node, nodes=len(plans), cpu=plans[node].cpu) if plans else task
            self._agents[node].give(run, own)

    def running(self) -> bool:
        """Whether the run goes on: until all agents have ended, or one has failed.

        Where ranks of one node have failed, those of others get a moment to say what they saw.
        """
        codes = self.exit_codes
        if None not in codes or not self._network_holds() or any((code or 0) < 0 for code in codes):
            return False
        if any(codes) and self._failed_at is None:
            self._failed_at = time.monotonic()
        return self._failed_at is None or time.monotonic() < self._failed_at + _REPORT_S

    def check_network(self) -> None:
        """Raise a WorkerError if the network of simulated nodes went away."""
        if not self._network_holds():
            raise WorkerError(
                "the process that holds the simulated network has ended, and all links with it; "
                "nothing is left behind: start the run again"
            )

    @property
    def exit_codes(self) -> list[int | None]:
        """The exit code of each agent's task, None while it goes on."""
        return [agent.exit_code for agent in self._agents]

    def stop(self) -> None:
        """End the run, and keep what the agents have printed; read `exit_codes` before.

        Agents stay for the next run where the tasks of all went well.
        """
        if any(code != 0 for code in self.exit_codes):
            self.end()
        for agent in self._agents:
            agent.keep_output()

    def end(self) -> None:
        """End the run and all agents."""
        end_all(self._agents)
        if self._network is not None:
            self._network.close()
            self._network = None
        for agent in self._agents:
            agent.close()
        self._agents.clear()
        self._failed_at = None

    def _network_holds(self) -> bool:
        return self._network is None or self._network.holds()

    def _environment(self, task: AgentTask | None = None) -> dict[str, str]:
        """Return the variables of an agent; ranks that train share out the cores themselves."""
        environment = {**os.environ, SCRATCH: str(self.scratch.path)}
        if self._network is not None:
            environment |= self._network.environment
        if task is not None and task.script:
            threads = max(1, (os.cpu_count() or 1) // task.workers)
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        return environment

    def _spawn(self, preload: tuple[str, ...], environment: dict[str, str]) -> None:
        enter = () if self._network is None else self._network.enter(len(self._agents))
        with deferred_signals():  # one that runs and is not in the list would not be ended
            self._agents.append(NodeAgent(preload, environment, enter))


class AgentPool(contextlib.ExitStack):
    """The agents of many runs; those of this host stay while others train on simulated nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._here = self.enter_context(Agents())
        self._on_nodes = self.enter_context(Agents())

    def of(self, nodes: int) -> Agents:
        """Return the agents of a run on so many simulated nodes; on one, those of this host."""
        return self._on_nodes if nodes > 1 else self._here
