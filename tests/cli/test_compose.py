"""The Compose file: as Compose reads it, and its commands on real nodes with those names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

import drumline as drumline_package
from commands import JOB
from drumline.core.nodes import NodePlan, address_of
from drumline.launcher.network import Network
from namespaces import need_namespaces


def compose(drumline, *words):
    answer = drumline("compose", "-o", "nodes", *words)
    assert answer.code == 0, answer.err
    return yaml.safe_load((drumline.folder / "nodes" / "compose.yaml").read_text())["services"]


def validated(folder: Path) -> dict:
    """The file as Docker Compose understands it; no daemon is needed for that."""
    for command in (["docker", "compose"], ["docker-compose"]):
        there = shutil.which(command[0]) is not None
        if there and not subprocess.run([*command, "version"], capture_output=True).returncode:
            file = ["-f", str(folder / "compose.yaml"), "config"]
            done = subprocess.run([*command, *file], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return yaml.safe_load(done.stdout)["services"]
    pytest.skip("no Docker Compose here; install docker-compose")


def test_compose_accepts_the_file(drumline):
    written = compose(
        drumline, "-n", "4", "--gpu", "--cpus", "1.5", "model=mlp", "data.path=/a$HOME"
    )
    read = validated(drumline.folder / "nodes")
    assert list(read) == list(written) == ["node01", "node02", "node03", "node04"]
    for rank, service in enumerate(read.values()):
        command = ["python", "-m", "drumline", "train", "--rank", str(rank), "--world-size", "4"]
        command += ["--master", "node01:29500", "threads=1", "model=mlp"]
        assert service["command"][:-1] == command
        assert service["command"][-1] in ("data.path=/a$HOME", "data.path=/a$$HOME"), (
            "not filled in"
        )
        resources = service["deploy"]["resources"]
        assert float(resources["limits"]["cpus"]) == 1.5
        (device,) = resources["reservations"]["devices"]
        assert (device["driver"], device["count"]) == ("nvidia", 1)
        assert device["capabilities"] == ["gpu"]
    package = Path(drumline_package.__file__).parent
    for service in read.values():  # older versions give a text
        mount = service["volumes"][1]
        assert package == Path(mount["source"] if isinstance(mount, dict) else mount.split(":")[0])
    assert f"{package}:" not in (drumline.folder / "nodes" / "compose.yaml").read_text()
    bare = compose(drumline, "-n", "1", "--force")
    assert list(bare) == list(validated(drumline.folder / "nodes")) == ["node01"]
    assert "deploy" not in bare["node01"]


def test_files_that_are_there_stay(drumline):
    compose(drumline, "-n", "2")
    before = (drumline.folder / "nodes" / "compose.yaml").read_text()
    answer = drumline("compose", "-n", "3", "-o", "nodes")
    assert answer.code == 2
    assert "exist already; write elsewhere with -o DIR, or over them with --force" in answer.err
    assert (drumline.folder / "nodes" / "compose.yaml").read_text() == before


def test_a_folder_with_a_space_is_quoted_in_the_command_to_paste(drumline):
    answer = drumline("compose", "-o", "my nodes")
    assert answer.out.endswith("docker compose --project-directory 'my nodes' up\n")
    (drumline.folder / "my nodes" / "Dockerfile").unlink()
    again = drumline("compose", "-o", "my nodes")
    assert again.code == 2
    assert "my nodes/compose.yaml exists already; " in again.err
    assert again.err.endswith("or over it with --force\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "0"], "give 1 to 99 nodes"),
        (["-n", "4", "nodes=4"], "each node is a container with one rank; use -n instead"),
        (["-n", "4", "modle=mlp"], "did you mean 'model'?"),
        (["-n", "4", "link=1gbit"], "'link=1gbit': link is about simulated nodes"),
        (["data.batch=1"], "'data.batch=1': data.batch is 1, less than one sample for each of 2"),
        (["slow_ranks.5.delay_ms=3"], "'slow_ranks.5.delay_ms=3': slow_ranks names rank 5, but"),
        (["backend=mpi"], "backend: mpi joins ranks that one mpirun has started"),
        (["backend=shm"], "backend: shm joins ranks that share memory, and containers do not"),
        (["-n", "4", "missing.yaml"], "no spec file"),
        (["--cpus", "0"], "must be more than 0"),
        (["--cpus", "nan"], "must be more than 0"),
        (["--port", "0"], "from 1 to 65535"),
    ],
)
def test_what_would_fail_in_every_container_is_refused_now(drumline, words, told):
    answer = drumline("compose", *words)
    assert answer.code == 2
    assert told in answer.err
    assert not (drumline.folder / "compose.yaml").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each node a hosts file of its own")
def test_containers_by_their_names(drumline):
    """What the containers run, on nodes that know each other by name as Compose's do."""
    need_namespaces()
    services = compose(drumline, "-n", "2", *JOB, "max_steps=3")
    hosts = drumline.folder / "hosts"
    hosts.write_text(
        "127.0.0.1 localhost\n"
        + "".join(f"{address_of(k)} {name}\n" for k, name in enumerate(services))
    )
    plans = tuple(NodePlan(node=k, address=address_of(k)) for k in range(2))
    with closing(Network(plans)) as network:
        nodes = []
        for k, service in enumerate(services.values()):
            words = [sys.executable, *service["command"][1:], *(["--json"] if k == 0 else [])]
            mounted = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts; exec "$@"']
            nodes.append(
                subprocess.Popen(
                    [*network.enter(k), *mounted, str(hosts), *words],
                    cwd=drumline.folder,
                    env=drumline.environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        answers = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], answers
    assert json.loads(answers[0][0])["world_size"] == 2
