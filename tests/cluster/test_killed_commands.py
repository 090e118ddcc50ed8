"""`drumline up` and `down` get `kill -9`; the next `up` goes on, and `down` leaves nothing.

Real commands on simulated nodes. What each prints tells how far it has come; that is when it dies.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from laptop import Laptop, Running
from twins import need_twins

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers.twin.control import TwinProcess, find_processes
from sshd import wait_until

pytestmark = pytest.mark.timeout(300)
CLUSTER = "name: doomed\nprovider: twin\nnodes: 2\n"
MARK = "DRUMLINE_DOOMED"
MAKING, KNOWN, FURNISHING = "worker1: starts", "has a host key of its own", "make the environment"


class Doomed:
    """A laptop whose commands die."""

    def __init__(self, folder: Path) -> None:
        self.drumline = Laptop(folder, {MARK: str(folder)})
        self.root = self.drumline.home.resolve()
        self.home = ClusterHome(self.drumline.home / "clusters" / "doomed")
        (self.drumline.project / "cluster.yaml").write_text(CLUSTER)

    def kill(self, word: str, *command: str) -> None:
        """Start a command, and kill it when it has printed a word."""
        running = self.drumline.start(*command)
        running.wait_for(word)
        _kill(running)

    def processes(self) -> list[TwinProcess]:
        """Everything that simulated nodes consist of."""
        return [one for one in find_processes() if self.root in one.home.parents]

    def nodes(self) -> dict[str, int]:
        return {one.name: one.pid for one in self.processes() if one.is_first}

    def check_nothing_is_left(self) -> None:
        assert self.processes() == []
        assert not self.home.path.exists()
        wait_until(lambda: not _started_by(self.drumline), "the end of what commands started", 60)


def _kill(running: Running) -> None:
    running.process.kill()
    running.wait()


def _started_by(laptop: Laptop) -> list[str]:
    """Processes that the commands have left on the laptop."""
    word = f"{MARK}={laptop.environment[MARK]}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture
def doomed(tmp_path):
    need_twins()
    made = Doomed(tmp_path)
    yield made
    made.drumline.close()
    if made.processes():
        made.drumline("down", "--no-pull", code=None)
    assert made.processes() == []


@pytest.mark.slow
def test_up_goes_on_and_down_leaves_nothing(doomed):
    doomed.kill(MAKING, "up")
    doomed.kill(KNOWN, "up")
    there = doomed.nodes()
    assert sorted(there) == ["worker0", "worker1"]
    doomed.kill(FURNISHING, "up")
    noted = doomed.home.read_facts().deadline
    answer = doomed.drumline.json("up", "max_hours=9", "--json")
    assert doomed.nodes() == there, "the very nodes"
    assert answer["made"] == []
    assert answer["limits_changed"] == ["max_hours 8 → 9"]
    assert answer["deadline"] == noted + 3600
    for name in there:
        limit = (doomed.home.twin / name / "drumline" / "limits" / "deadline").read_text()
        assert float(limit) == pytest.approx(answer["deadline"], abs=1)
    doomed.kill("worker0: removed", "down", "--no-pull")
    doomed.drumline("down", "--no-pull")
    doomed.check_nothing_is_left()


@pytest.mark.slow
def test_ansible_ends_with_up_though_it_has_nothing_to_say(doomed):
    playbook = "- hosts: drumline\n  gather_facts: false\n  tasks:\n"
    playbook += "    - {name: think it over, ansible.builtin.command: sleep 600}\n"
    (doomed.drumline.project / "slow.yml").write_text(playbook)
    with (doomed.drumline.project / "cluster.yaml").open("a") as file:
        file.write("environment: {playbook: slow.yml}\n")
    doomed.kill("think it over", "up")
    wait_until(lambda: not _started_by(doomed.drumline), "the end of Ansible", 60)
    doomed.drumline("down", "--no-pull")
    doomed.check_nothing_is_left()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("then", ["up", "down"])
def test_at_any_moment(doomed, then):
    """Killed after ever longer whiles, until one command gets through."""
    for step in range(40):
        running = doomed.drumline.start("up")
        try:
            code = running.process.wait(0.2 * 1.25**step)
        except subprocess.TimeoutExpired:
            _kill(running)
        else:
            assert code == 0, running.text
            break
        if then == "down":
            doomed.drumline("down", "--no-pull")
            doomed.check_nothing_is_left()
    assert then == "down" or sorted(doomed.nodes()) == ["worker0", "worker1"]
    for step in range(40):
        running = doomed.drumline.start("down", "--no-pull")
        try:
            assert running.process.wait(0.2 * 1.25**step) == 0, running.text
            break
        except subprocess.TimeoutExpired:
            _kill(running)
    doomed.check_nothing_is_left()
