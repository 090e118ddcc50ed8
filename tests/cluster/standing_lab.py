"""A cluster at the stand-in for EC2 that is up, what is on its nodes, and where secrets may be."""

from __future__ import annotations

import json
import os
import shutil
import stat
import uuid
from pathlib import Path

import pytest
from ec2_machines import LAPTOP, Ec2Machines
from laptop import LONG_JOB, Laptop

from drumline.cluster.home import ClusterHome

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRETS = (f"canary-of-aws-{uuid.uuid4().hex}", f"canary-of-the-environment-{uuid.uuid4().hex}")
SPEC = """
name: mnist
model: mlp
data: {name: mnist-mini, batch: 128, samples: 2000}
optimizer: {name: sgd, lr: 0.05}
strategy: ring
epochs: 1
checkpoint: {every_steps: 5}
"""


class Lab:
    """A cluster that is up, and everything around it."""

    def __init__(self, folder: Path, machines: Ec2Machines, patch: pytest.MonkeyPatch) -> None:
        self.machines = machines
        self.aws = machines.aws
        environment = {**machines.environment(), "AWS_SECRET_ACCESS_KEY": SECRETS[0]}
        environment["MY_API_TOKEN"] = SECRETS[1]
        self.drumline = Laptop(folder, environment, enter=machines.twin.enter("laptop"))
        patch.setenv("DRUMLINE_HOME", str(self.drumline.home))
        self.home = ClusterHome.of("lab")
        self.tokens: list[str] = []
        self.lightning = ""
        """the id of a job that printed something"""
        project = self.drumline.project
        shutil.copytree(EXAMPLES / "lightning_hydra", project / "lightning_hydra")
        (project / "mnist.yaml").write_text(SPEC)
        (project / "long.py").write_text(LONG_JOB)

    def up(self) -> None:
        """From a written cluster.yaml to a cluster that takes jobs, and once more."""
        self.drumline("cluster", "init", "ec2", "--name", "lab")
        words = (
            "ec2.instance_type=c5.large",
            f"ec2.subnet={self.aws.subnets['us-east-1a']}",
            f"ec2.allow_from={LAPTOP}/32",
            "storage=s3://bucket/runs",
        )
        self.plan = self.drumline.json("plan", *words, "--json")
        self.after_plan = self.aws.left(), {call.action for call in self.aws.calls}
        self.first = self.drumline.json("up", *words, "--json")
        self.aws.calls.append("again")
        self.again = self.drumline.json("up", *words, "--json")
        where = self.aws.calls.index("again")
        self.calls_again = [call.action for call in self.aws.calls[where + 1 :]]
        self.aws.calls.remove("again")
        self.ids = [node["identity"] for node in self.first["nodes"]]
        self.hosts = [node["host"] for node in self.first["nodes"]]

    def folder_of(self, node: int) -> Path:
        """Everything that is on a node."""
        return Path(self.machines.orders[self.ids[node]].folder)

    def node_processes(self) -> dict[str, bytes]:
        """The words and variables of all processes that run on nodes."""
        spaces = {
            os.readlink(f"/proc/{node['pid']}/ns/pid")
            for node in self.machines.twin.status()
            if node["name"].startswith("ip-")
        }
        assert len(spaces) == 2
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns" / "pid") in spaces:
                    for name in ("cmdline", "environ"):
                        found[f"{entry}/{name}"] = (entry / name).read_bytes()
            except OSError:
                continue
        return found

    def jobs(self) -> list[dict]:
        return self.drumline.json("status", "--json")["jobs"]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def newest_job(lab: Lab) -> str:
    jobs = lab.folder_of(0) / "drumline" / "jobs"
    found = [path for path in jobs.iterdir() if (path / "job.json").exists()]
    return max(found, key=lambda path: (path / "job.json").stat().st_mtime).name


def job_phases(lab: Lab) -> list[str]:
    job = newest_job(lab)
    files = [lab.folder_of(node) / "drumline" / "jobs" / job / "state.json" for node in range(2)]
    return [json.loads(file.read_text())["phase"] for file in files]


def look_for_secrets(lab: Lab, secrets: list[str]) -> None:
    """Secrets are in no process of a node, in no file but Jupyter's own, in nothing we printed."""
    words = [secret.encode() for secret in secrets]
    for place, content in lab.node_processes().items():
        assert not any(word in content for word in words), place
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            content = entry.read_bytes()
        except OSError:
            continue
        assert not any(word in content for word in words), entry
    holders = set()
    for top in (lab.folder_of(0), lab.folder_of(1), lab.drumline.home, lab.drumline.project):
        for path in top.rglob("*"):
            if "env" in path.parts or not path.is_file() or path.is_symlink():
                continue
            if any(word in path.read_bytes() for word in words):
                holders.add(path)
    own = lab.folder_of(0) / "drumline" / "services" / "jupyter"
    assert not [path for path in holders if own not in path.parents]
    if holders:
        assert stat.S_IMODE(own.stat().st_mode) == 0o700, "only its owner finds the token there"
        assert not [path for path in holders if "log" in path.name]
    for answer in lab.drumline.answers:
        assert not any(secret in answer.out + answer.err for secret in secrets)


def processes_of_laptop(lab: Lab) -> list[str]:
    """Processes that the commands have left."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if SECRETS[1].encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
