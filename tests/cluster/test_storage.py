"""Copies of run directories: in a folder, and in an S3 server that answers over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from drumline.cluster.files.storage import LAPTOP, fetch_run, keep_copies, latest_run
from drumline.core.errors import ClusterError, HostError
from drumline.node import keeper
from drumline.node.job import Job, JobFolder
from drumline.node.storage import MANIFEST, Manifest, Store, shown_url
from local_remote import local_node


@pytest.fixture(scope="module")
def s3():
    """An S3 server on this machine, and the settings that lead there."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("HTTP_PROXY", "http_proxy", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket/a prefix"
    server.stop()


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/a storage"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a run"
    write(folder, "events/rank-0.jsonl", "one\n")
    write(folder, "checkpoints/step-1/model.safetensors", "x" * 1000)
    write(folder, "checkpoints/.half.part", "half")
    return folder


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def upload_run(folder, url, run, *, ended=True):
    return Store(url).copy(folder, run, LAPTOP, ended=ended)


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("where", ["file", "s3"])
def test_a_run_comes_back_as_it_was(where, request, run, tmp_path):
    url = request.getfixturevalue("url" if where == "file" else "s3")
    assert latest_run(url) is None
    assert upload_run(run, url, "mnist-1").files == 2
    assert upload_run(run, url, "mnist-1").files == 0, "nothing has changed"
    os.utime(run / "events/rank-0.jsonl", (1, 1))
    assert upload_run(run, url, "mnist-1").files == 0, "only a date has"
    write(run, "events/rank-0.jsonl", "one\ntwo\n")
    (run / "summary.json").write_text("{}")
    copied = upload_run(run, url, "mnist-1")
    assert (copied.files, copied.bytes) == (2, 10)
    back = fetch_run(url, "mnist-1", tmp_path / "back")
    (run / "checkpoints/.half.part").unlink()
    assert tree(back) == tree(run)
    assert keys(url, "mnist-1/laptop") == {
        "events/rank-0.jsonl~",
        "checkpoints/step-1/model.safetensors",
        "summary.json",
        MANIFEST,
    }
    upload_run(run, url, "mnist-2", ended=False)
    assert latest_run(url) == "mnist-2"
    newest, *others = Store(url).manifests()
    assert (newest.run, newest.ended, len(newest.files)) == ("mnist-2", False, 3)
    assert sum(file.bytes for file in newest.files.values()) == 1010
    assert [copy.run for copy in others] == ["mnist-1"]
    with pytest.raises(ClusterError, match="no run 'mnist-3'; the newest are mnist-2, mnist-1"):
        fetch_run(url, "mnist-3", tmp_path / "none")
    with pytest.raises(ClusterError, match="exists already"):
        fetch_run(url, "mnist-2", tmp_path / "back")


def keys(url, under):
    fs, root = fsspec.url_to_fs(url, skip_instance_cache=True)
    return {path.split(f"{under}/")[1] for path in fs.find(f"{root}/{under}")}


def test_a_damaged_copy_is_refused_by_name(url, run, tmp_path):
    upload_run(run, url, "r")
    fs, root = fsspec.url_to_fs(url, skip_instance_cache=True)
    file = f"{root}/r/laptop/events/rank-0.jsonl"
    for content, why in ((b"One\n", "its checksum is another"), (b"one", "has 3 bytes")):
        fs.pipe_file(file, content)
        with pytest.raises(ClusterError, match=rf"r/laptop/events/rank-0.jsonl in .*{why}"):
            fetch_run(url, "r", tmp_path / "back")
    fs.rm_file(file)
    with pytest.raises(ClusterError, match=r"rank-0.jsonl in .* incomplete: it is not there"):
        fetch_run(url, "r", tmp_path / "back")
    document = json.loads(fs.cat_file(f"{root}/r/laptop/{MANIFEST}"))
    document["files"]["../../evil"] = document["files"]["events/rank-0.jsonl"]
    elsewhere = json.loads(fs.cat_file(f"{root}/r/laptop/{MANIFEST}"))
    elsewhere["files"]["events/rank-0.jsonl"]["key"] = "../../../secret"
    for content in (json.dumps(document), json.dumps(elsewhere), "{}", "\0"):
        content = content.encode()
        fs.pipe_file(f"{root}/r/laptop/{MANIFEST}", content)
        with pytest.raises(ClusterError, match=f"copy of r by laptop .* damaged: {MANIFEST}"):
            fetch_run(url, "r", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_the_latest_is_one_that_has_checkpoints(url, run, tmp_path):
    """A script's run that came later, or one that has only begun, is nothing to go on from."""
    upload_run(run, url, "trained")
    write(tmp_path / "script", "logs/rank-0.log", "hello\n")
    os.utime(tmp_path / "script/logs/rank-0.log", (4e9, 4e9))
    upload_run(tmp_path / "script", url, "script")
    (tmp_path / "begun").mkdir()
    upload_run(tmp_path / "begun", url, "begun", ended=False)
    assert {copy.run for copy in Store(url).manifests()} == {"trained", "script", "begun"}
    assert latest_run(url) == "trained"


def test_a_manifest_does_not_say_whose_it_is(url, run):
    """The place does: a made-up name would become a folder's on the leader."""
    upload_run(run, url, "r")
    fs, root = fsspec.url_to_fs(url, skip_instance_cache=True)
    document = json.loads(fs.cat_file(f"{root}/r/laptop/{MANIFEST}"))
    fs.pipe_file(f"{root}/r/laptop/{MANIFEST}", json.dumps({**document, "run": "../x"}).encode())
    assert latest_run(url) == "r"
    for name in ("..", "a/b", ""):
        with pytest.raises(ValueError, match="is no folder's name"):
            Manifest.from_json(json.dumps(document), run=name, writer="laptop")
    assert shown_url("s3://key:p@ss@bucket/x?token=1") == "s3://bucket/x"


def test_the_keeper_tells_what_nobody_expected_and_ends_with_a_killed_job(tmp_path, monkeypatch):
    job = JobFolder(tmp_path, "j1")
    job.create(Job(id="j1", title="t", node=0, addresses=("10.0.0.1",)), "secret")
    job.note(phase="running")
    job.hold().release()  # who ran it is gone
    monkeypatch.setattr(keeper, "_RETRY_S", 0.0)

    class Broken:
        def copy(self, *_, **__):
            raise RuntimeError("the sky fell")

    keeper.keep(job, Broken(), "worker0", every_s=0.01)
    note = json.loads((job.path / "storage.json").read_text())
    assert (note["error"], note["ended"]) == ("RuntimeError: the sky fell", True)


def test_a_copy_that_is_cut_short_leaves_the_last_one_whole(url, run, tmp_path, monkeypatch):
    """Whatever the moment that the node dies: the copy before it can be restored."""
    upload_run(run, url, "r", ended=False)
    first = {k: v for k, v in tree(run).items() if ".half" not in k}
    for name in first:
        write(run, name, "changed " + name)
    second = {k: v for k, v in tree(run).items() if ".half" not in k}
    for calls in range(6):
        store = Store(url)
        left = [calls]

        def dying(name, original, left=left):
            def call(*args, **options):
                if not left[0]:
                    raise KeyboardInterrupt(name)
                left[0] -= 1
                return original(*args, **options)

            return call

        for name in ("_send", "_write", "_forget"):
            monkeypatch.setattr(store, name, dying(name, getattr(store, name)))
        died = False
        try:
            store.copy(run, "r", "laptop", ended=False)
        except KeyboardInterrupt:
            died = True
        back = fetch_run(url, "r", tmp_path / f"back{calls}")
        assert tree(back) in (first, second)
    assert not died
    assert tree(back) == second


def test_nodes_copy_while_a_job_runs_and_when_it_ends(s3, tmp_path):
    url = s3 + "/nodes"
    remotes = [local_node(tmp_path / f"node{node}", node) for node in range(2)]
    jobs = [Path(remote.machine.root) / "jobs" / "j1" for remote in remotes]
    for node, job in enumerate(jobs):
        write(job, f"run/events/rank-{node}.jsonl", "one\n")
        write(job, "run/spec.yaml", f"from {node}\n")
        write(job, "state.json", '{"phase": "running"}')
        os.utime(job / "run/spec.yaml", (node, node))
    asyncio.run(keep_copies(remotes, url, "j1", every_s=0.2))
    stored = Store(url)
    names = {"events/rank-0.jsonl", "events/rank-1.jsonl", "spec.yaml"}
    wait_until(lambda: {name for copy in stored.manifests() for name in copy.files} == names)
    assert {(copy.run, copy.ended) for copy in stored.manifests()} == {("j1", False)}
    for node, job in enumerate(jobs):
        write(job, f"run/events/rank-{node}.jsonl", "one\ntwo\n")
        write(job, "state.json", '{"phase": "done", "code": 0}')
    wait_until(lambda: all(copy.ended for copy in stored.manifests()))
    back = fetch_run(url, "j1", tmp_path / "back")
    assert tree(back) == {
        "events/rank-0.jsonl": "one\ntwo\n",
        "events/rank-1.jsonl": "one\ntwo\n",
        "spec.yaml": "from 1\n",
    }
    wait_until(lambda: json.loads((jobs[0] / "storage.json").read_text())["ended"])
    wait_until(lambda: not keepers(tmp_path))
    with pytest.raises(HostError, match=r"worker0 cannot copy .*does not exist"):
        asyncio.run(keep_copies(remotes[:1], "s3://no-such-bucket/x", "j1"))
    # without a check, nobody waits; what is wrong is noted beside the run
    asyncio.run(keep_copies(remotes[:1], "s3://no-such-bucket/x", "j1", check=False))
    note = jobs[0] / "storage.json"
    wait_until(lambda: "does not exist" in json.loads(note.read_text())["error"])
    wait_until(lambda: not keepers(tmp_path))


def keepers(folder):
    """Processes that copy from somewhere in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if b"drumline.node.keeper" in words and os.fsencode(folder) in words:
            found.append(words)
    return found


def wait_until(true, within_s=60):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def test_what_a_storage_refuses_is_told_with_the_way_out(s3, run, tmp_path, monkeypatch):
    with pytest.raises(ClusterError, match=r"no-such-bucket/x does not exist .*make the bucket"):
        upload_run(run, "s3://no-such-bucket/x", "r")
    assert [b["Name"] for b in boto3.client("s3").list_buckets()["Buckets"]] == ["bucket"]
    with pytest.raises(ClusterError, match="protocol that fsspec does not know"):
        upload_run(run, "sss://bucket/x", "r")
    locked = tmp_path / "file"
    locked.write_text("")
    with pytest.raises(ClusterError, match="cannot be used"):
        upload_run(run, f"file://{locked}/x", "r")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(ClusterError, match=r"needs credentials, and there are none"):
        upload_run(run, s3 + "/private", "r")


def test_a_missing_package_is_named(run):
    with pytest.raises(ClusterError, match=r"needs a package .*pip install gcsfs"):
        upload_run(run, "gs://bucket/x", "r")
