"""What goes wrong with machines, and with what people write, by the command line, on twin nodes.

The folder's name has spaces and letters of other languages, and the environment names a proxy that
answers nobody: neither may matter.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest
from laptop import LONG_JOB, Laptop
from twins import need_twins

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers.twin.control import Control, find_processes, processes_of
from drumline.cluster.providers.twin.folder import NodeOrder, login_name
from drumline.cluster.ssh.keys import cluster_key, host_key, public_key
from drumline.core.errors import ClusterError
from drumline.core.nodes import address_of
from sshd import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HOSTILE = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    "http://127.0.0.1:9",
)
CLUSTER = """
name: fragile
provider: twin
nodes: 2
"""
HELLO = """
import torch.distributed as dist
dist.init_process_group("gloo")
print("hello from", dist.get_rank(), "of", dist.get_world_size(), flush=True)
"""


class Fragile:
    """A cluster of two simulated nodes, and ways to hurt it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.drumline = Laptop(folder, HOSTILE)
        patch.setenv("DRUMLINE_HOME", str(self.drumline.home))
        self.home = ClusterHome.of("fragile")
        self.control = Control(self.home.twin.resolve())
        for name, text in {
            "cluster.yaml": CLUSTER,
            "hello wörld.py": HELLO,
            "endless.py": LONG_JOB,
        }.items():
            (self.drumline.project / name).write_text(text)

    def up(self) -> None:
        """Make what is missing."""
        self.drumline("up")

    def kill(self, name: str) -> None:
        self.control.ask("kill", name=name)

    def replace(self, node: int, **order: object) -> None:
        """Put another machine in a node's place, which the provider takes for its own."""
        name = f"worker{node}"
        self.kill(name)
        self.control.add(
            [
                NodeOrder(
                    name=name,
                    folder=str(self.control.home / name),
                    addresses=(f"{address_of(node)}/24",),
                    user=login_name(),
                    host_key=host_key(self.home, node).private,
                    public_keys=(public_key(cluster_key(self.home)),),
                    **order,
                )
            ]
        )

    def living(self) -> set[str]:
        return {one.name for one in processes_of(self.control.home) if one.is_first}

    def ranks(self) -> list[str]:
        """Processes of jobs on any node."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                folder = os.readlink(entry / "cwd")
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if folder.startswith(str(self.control.home)) and "/jobs/endless" in folder:
                found.append(words.decode())
        return found


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    need_twins()
    with pytest.MonkeyPatch.context() as patch:
        made = Fragile(tmp_path_factory.mktemp("faults"), patch)
        yield made
        made.drumline.close()
        made.drumline("down", "--no-pull", code=None)
        root = made.drumline.home.resolve()
        assert not [one for one in find_processes() if root in one.home.parents]


def test_commands_without_a_cluster(fragile, tmp_path):
    answer = fragile.drumline("submit", "--", "hello wörld.py", code=2)
    assert "no cluster fragile is up; make it with: drumline up" in answer.err
    assert len(answer.err.splitlines()) == 1
    other = Laptop(tmp_path, {})
    answer = other("submit", "--", "train.py", code=2)
    assert "no cluster is up; write a cluster.yaml (drumline cluster init)" in answer.err
    assert "no cluster.yaml here" in other("up", code=2).err
    assert not other.home.exists()


def test_a_node_that_dies_during_up_is_named_and_replaced(fragile):
    """Before SSH answers; meanwhile, a second `up` hears who is at it."""
    if fragile.living():
        fragile.drumline("down", "--no-pull")
    first = fragile.drumline.start("up", "twin.boot_s=8")
    wait_until(lambda: len(fragile.living()) == 2, "the nodes", 60)
    first.wait_for("waiting for SSH")
    answer = fragile.drumline("up", code=1)
    assert re.search(
        rf"fragile is being changed by `drumline up` \(process {first.process.pid} of ", answer.err
    ), answer.err
    fragile.kill("worker1")
    assert first.wait() == 1
    assert re.search(
        r"worker1 \(twin-\d+-\d+\) ended while we waited for SSH; run drumline up again", first.text
    ), first.text
    assert fragile.living() == {"worker0"}
    answer = fragile.drumline.json("up", "--json")
    assert answer["made"] == ["worker1"]
    assert answer["provisioned"] == ["worker0", "worker1"]
    answer = fragile.drumline("submit", "--", "hello wörld.py")
    assert sorted(answer.out.splitlines()) == [f"[{k}] hello from {k} of 2" for k in range(2)]
    assert "no script nowhere.py here" in fragile.drumline("submit", "--", "nowhere.py", code=2).err


@pytest.mark.parametrize("node", [1, 0], ids=["a-worker", "the-leader"])
def test_a_node_that_dies_during_a_job_ends_it_for_all(fragile, node):
    fragile.up()
    job = fragile.drumline.start("submit", "--", "endless.py")
    job.wait_for("[1] step 2")
    assert fragile.ranks()
    fragile.kill(f"worker{node}")
    assert job.wait() != 0
    end = job.text[job.text.rindex("step") :]
    assert f"worker{node}" in end or address_of(node) in end or f"node {node}" in end, end
    wait_until(lambda: not fragile.ranks(), "no rank goes on alone", 30)


def test_a_requirement_that_does_not_install(fragile):
    fragile.up()
    (fragile.drumline.project / "bad.txt").write_text("./no-such-wheel-7f.whl\n")
    answer = fragile.drumline("up", "environment.requirements=bad.txt", code=1)
    assert re.search(r"worker[01]: 'install your requirements' failed", answer.err), answer.err
    assert "no-such-wheel-7f.whl" in answer.err
    assert {"worker0", "worker1"} <= set(re.findall(r"worker\d", answer.err)), "both are named"
    assert "ERROR" in answer.err or "Invalid requirement" in answer.err


def test_a_full_disk_is_named_with_its_node(fragile):
    fragile.up()
    big = fragile.drumline.project / "big.bin"
    fragile.replace(1, disk_mb=1)
    answer = fragile.drumline("up", code=1)
    assert re.search(r"worker1.*(No space left|disk is full)", answer.err), answer.err
    fragile.replace(1, disk_mb=24)
    fragile.up()
    big.write_bytes(os.urandom(40 << 20))
    try:
        answer = fragile.drumline("submit", "--", "hello wörld.py", code=1)
        assert re.search(r"worker1.*(No space left|disk is full)", answer.err), answer.err
        assert "worker0" not in answer.err.splitlines()[-1]
    finally:
        big.unlink()
    answer = fragile.drumline("submit", "--", "hello wörld.py")
    assert "[1] hello from 1 of 2" in answer.out


def test_a_node_that_dies_during_down(fragile):
    fragile.up()
    down = fragile.drumline.start("down")
    wait_until(lambda: down.lines, "it begins", 60)
    with contextlib.suppress(ClusterError):  # it may be quicker than we are
        fragile.kill("worker0")
    assert down.wait() == 0, down.text
    assert "left: 0 resources" in down.text
    assert fragile.living() == set()
    assert not processes_of(fragile.control.home)
    assert not fragile.home.twin.exists()
