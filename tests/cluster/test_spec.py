"""What cluster.yaml names is beside it, whatever folder commands are run in."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.cluster.spec import read_cluster


def test_key_files_lie_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "cluster.yaml").write_text(
        """
provider: ssh
nodes: 4
ec2: {key_file: keys/id}
ssh:
  hosts:
    - {host: h0, key_file: keys/id}
    - {host: h1, key_file: ~/.ssh/id}
    - {host: h2, key_file: ""}
    - {host: h3}
"""
    )
    spec = read_cluster(tmp_path / "a b" / "cluster.yaml")
    assert (spec.storage, spec.storage_folder) == (None, None)
    own = str(tmp_path / "a b" / "keys" / "id")
    assert [host.key_file for host in spec.ssh.hosts] == [own, "/home/me/.ssh/id", "", None]
    assert spec.ec2.key_file == own
    monkeypatch.chdir("a b")
    assert read_cluster(None) == spec


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("store", "{}/store"),
        ("file://my store", "{}/my store"),
        ("~/store", "/home/me/store"),
        ("/data", "/data"),
        ("file:///data", "file:///data"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("simplecache::s3://bucket", "simplecache::s3://bucket"),
    ],
)
def test_a_storage_that_is_a_folder_lies_beside_the_file(tmp_path, monkeypatch, written, meant):
    """As it stands, nodes would look for it in their own home."""
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "cluster.yaml").write_text(f'storage: "{written}"\n')
    spec = read_cluster(tmp_path / "cluster.yaml")
    assert spec.storage == meant.format(tmp_path)
    folder = None if "s3:" in meant else Path(meant.format(tmp_path).removeprefix("file://"))
    assert spec.storage_folder == folder


def test_an_empty_storage_is_none(tmp_path):
    (tmp_path / "cluster.yaml").write_text('storage: ""\n')
    assert read_cluster(tmp_path / "cluster.yaml").storage is None
