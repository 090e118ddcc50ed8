"""Provisioning by Ansible, over real SSH servers on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine
from drumline.cluster.provision import playbook
from drumline.cluster.provision.playbook import Failure, PlaybookOutcome, without_secrets
from drumline.cluster.provision.provision import Provisioner, _finished
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import HostError, SpecError
from local_remote import SOURCE, LocalRemote
from ssh_nodes import SshNodes

PLAYBOOK = """
- hosts: workers
  gather_facts: false
  tasks:
    - name: my own task
      ansible.builtin.command:
        argv: [cp, "{{ drumline_root }}/profile.sh", "{{ drumline_root }}/mine"]
        creates: "{{ drumline_root }}/mine"
"""
PACKAGE = """
[project]
name = "tinything"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
INFO = "tinything-1.0.dist-info"
WHEEL = {
    "tinything.py": "answer = 42\n",
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/RECORD": "",
}
SECRET = "canary-4711"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = SshNodes(tmp_path_factory.mktemp("nodes"))
    nodes.start(2)
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with cluster.yaml's files: a package that installs, and one that does not."""
    folder = tmp_path_factory.mktemp("a project")
    (folder / "bad").mkdir()
    (folder / "bad" / "pyproject.toml").write_text(PACKAGE)
    (folder / "bad" / "backend.py").write_text("raise ValueError('the sky fell')")
    with zipfile.ZipFile(folder / "tinything-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    head = f"--no-index\n--extra-index-url https://me:{SECRET}@localhost:1/\n"
    (folder / "good.txt").write_text(f"{head}-r more/inner.txt\n")
    (folder / "more").mkdir()
    (folder / "more" / "inner.txt").write_text(f"--find-links file://{quote(folder)}\ntinything\n")
    (folder / "bad.txt").write_text(f"{head}tinything @ file://{quote(folder)}/bad\n")
    (folder / "mine.yml").write_text(PLAYBOOK)
    return folder


def quote(path: Path) -> str:
    return str(path).replace(" ", "%20")


class Story:
    """What provisioning told."""

    def __init__(self):
        self.lines = []

    def __call__(self, node, what):
        self.lines.append((node, *what.rsplit(": ", 1)))

    def states(self, *states):
        return [line for line in self.lines if line[2] in states]


def provision(nodes, project, **environment):
    spec = ClusterSpec.model_validate(
        {"provider": "twin", "environment": {"python": sys.executable, **environment}}
    )
    remotes = [LocalRemote(machine) for machine in nodes.machines]
    home = ClusterHome(nodes.folder)
    home.ssh_config = nodes.config
    provisioner = Provisioner(spec=spec, folder=project, home=home)
    story = Story()
    names = asyncio.run(provisioner.provision(remotes, story))
    return names, story


def python_says(machine, code):
    python = f"{machine.root}/env/bin/python"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd="/", timeout=60
    ).stdout.strip()


@pytest.mark.slow
def test_nodes_get_their_environment_once(nodes, project, monkeypatch, tmp_path):
    monkeypatch.setenv("ANSIBLE_FORKS", "nonsense")  # a user's own settings are not ours
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ansible.cfg").write_text("[defaults]\nremote_user = nobody\n")
    files = {"requirements": "good.txt", "playbook": "mine.yml"}
    names, story = provision(nodes, project, **files)
    assert names == ("worker0", "worker1")
    assert not story.states("failed", "unreachable")
    assert ("worker1", "my own task", "changed") in story.lines
    assert ("worker0", "install your requirements", "changed") in story.lines

    for machine in nodes.machines:
        root = Path(machine.root)
        lib = root / "lib-1"
        lib.mkdir()
        (lib / "drumline").symlink_to(SOURCE / "drumline")  # another part brings it
        (root / "lib").symlink_to("lib-1")
        said = "import drumline, tinything, rich, sys; print(drumline.__file__, sys.prefix)"
        assert python_says(machine, said) == f"{lib}/drumline/__init__.py {root}/env"
        script = f". '{root}/profile.sh' && echo $NODE_RANK $MASTER_ADDR $(command -v python)"
        answer = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
        assert answer.stdout.strip() == f"{machine.node} 127.0.0.1 {root}/env/bin/python"
    assert "NODE_RANK=1" in (Path(nodes.machines[1].root) / "mine").read_text()
    assert not (Path(nodes.machines[0].root) / "mine").exists()

    # the fast path: one question to each node, and no Ansible
    assert provision(nodes, project, **files)[0] == ()
    # a node that lost its environment is the only one that is provisioned
    Path(nodes.machines[1].root, "env", "stamp").unlink()
    names, story = provision(nodes, project, **files)
    assert names == ("worker1",)
    assert {node for node, _, _ in story.lines} == {"worker1"}
    assert story.states("changed", "failed") == [], "a second run changes nothing"
    everything = b"".join(
        p.read_bytes() for p in (nodes.folder / "ansible").iterdir() if p.is_file()
    )
    assert SECRET.encode() not in everything, "base64 apart, no file of Ansible's has a secret"
    assert [p.name for p in tmp_path.iterdir()] == [".ansible.cfg"], "nothing in the home folder"


@pytest.mark.slow
def test_a_requirement_that_does_not_install_is_shown(nodes, project, scratch):
    with pytest.raises(HostError) as raised:
        provision(nodes, project, requirements="bad.txt")
    message = raised.value.message
    assert message.startswith(f"{raised.value.fields['node']}: 'install your requirements' failed:")
    assert "the sky fell" in message
    assert "last.log" in message
    assert raised.value.fields["nodes"] in ("worker0, worker1", "worker1, worker0")
    log = (nodes.folder / "ansible" / "last.log").read_text()
    assert "the sky fell" in log
    assert SECRET not in log
    assert not ssh_masters(scratch)


def test_what_a_node_lacks_is_named(nodes, project, tmp_path):
    """All before any Ansible, or without it."""
    with pytest.raises(SpecError, match=r"nothere\.txt.*cannot be read: No such file"):
        provision(nodes, project, requirements="nothere.txt")
    (tmp_path / "out.txt").write_text("-r ../elsewhere.txt\n")
    with pytest.raises(SpecError, match="outside its folder"):
        provision(nodes, tmp_path, requirements="out.txt")


@pytest.fixture
def scratch(monkeypatch):
    """Where temporary folders are made; short, since a socket's path must be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


def ssh_masters(scratch):
    """Connections that Ansible left open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if b"[mux]" in words and os.fsencode(scratch) in words:
            found.append(words)
    return found


def test_passwords_in_urls_are_not_told():
    text = "Looking in https://me:p@ss@host/simple, https://TOKEN@host/ and http://host/x"
    shown = "Looking in https://***@host/simple, https://***@host/ and http://host/x"
    assert without_secrets(text) == shown
    event = '{"msg": "http://host", "stderr": "me@here"}'
    assert without_secrets(event) == event, "an event stays one"


@pytest.mark.parametrize(
    ("code", "failed", "alone", "finished"),
    [
        (0, ("worker0",), False, ["worker0", "worker1"]),  # it was rescued
        (2, ("worker0",), True, ["worker1"]),
        (2, ("worker0",), False, []),  # any_errors_fatal has kept worker1 from the rest
        (4, (), True, []),
    ],
)
def test_only_who_has_run_all_of_it_is_stamped(code, failed, alone, finished):
    remotes = [LocalRemote(machine(node)) for node in range(2)]
    failures = tuple(Failure(node=n, task="t", state="failed", message="m") for n in failed)
    outcome = PlaybookOutcome(code=code, failures=failures)
    found = _finished(remotes, outcome, alone=alone)
    assert [remote.machine.name for remote in found] == finished


def machine(node):
    return Machine(node=node, host="127.0.0.1", address="127.0.0.1", user="me")


def test_two_runs_at_once_share_no_file_and_leave_none(tmp_path, monkeypatch):
    """Here Ansible cannot even start."""
    monkeypatch.setattr(playbook, "ansible_program", lambda: str(tmp_path / "nothing"))
    run = playbook.PlaybookRun(
        folder=tmp_path / "ansible",
        inventory=playbook.inventory_list([], tmp_path / "config"),
        variables={"word": SECRET},
        playbooks=[],
        limit=("worker0",),
    )
    with pytest.raises(FileNotFoundError):
        asyncio.run(run.run(Story()))
    assert list((tmp_path / "ansible").iterdir()) == []
