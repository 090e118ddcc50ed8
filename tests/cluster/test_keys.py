"""Key files, as users have them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from drumline.cluster.ssh.keys import check_key, cluster_key, public_key
from drumline.core.errors import ClusterError

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen here; install openssh-client"
)


def keygen(path, *words):
    subprocess.run(["ssh-keygen", "-q", "-f", path, *words], check=True, stdin=subprocess.DEVNULL)
    return path


def test_openssh_reads_the_clusters_key(home):
    path = cluster_key(home)
    found = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True)
    assert found.stdout.split()[:2] == public_key(path).split()[:2]
    content = path.read_text()
    assert cluster_key(home).read_text() == content
    path.write_text("damaged")
    with pytest.raises(ClusterError, match="is damaged"):
        cluster_key(home)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa -b 2048"])
def test_a_users_own_key(tmp_path, kind):
    path = keygen(tmp_path / "my key", "-t", *kind.split(), "-N", "")
    assert check_key(path) == path
    path.with_name("my key.pub").unlink()
    assert public_key(path).startswith(("ssh-", "ecdsa-"))


def test_bad_key_files_each_have_a_way_out(tmp_path, monkeypatch):
    path = keygen(tmp_path / "key", "-t", "ed25519", "-N", "")
    path.chmod(0o640)
    with pytest.raises(ClusterError, match=rf"mode 640.*chmod 600 {path}"):
        check_key(path)
    public = path.with_suffix(".pub")
    public.chmod(0o600)
    with pytest.raises(ClusterError, match=f"no private key; name its private half: {path}"):
        check_key(public)
    with pytest.raises(ClusterError, match="cannot be read: No such file"):
        check_key(tmp_path / "none")
    with pytest.raises(ClusterError, match="is no file"):
        check_key(tmp_path)
    for number, words in enumerate((["-t", "ed25519"], ["-t", "ecdsa", "-m", "PEM"])):
        locked = keygen(tmp_path / f"locked{number}", *words, "-N", "secret")
        with pytest.raises(ClusterError, match=r"has a passphrase.*ssh-add"):
            check_key(locked)
    monkeypatch.setenv("HOME", str(tmp_path))
    path.chmod(0o600)
    assert check_key("~/key") == path
