"""What ends a node: the script that looks at its limits, and what it is told at boot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from importlib import resources
from pathlib import Path

import pytest
import yaml

from drumline.cluster.life import limits
from drumline.cluster.providers.ec2.launch import USER_DATA_BYTES, cloud_config
from drumline.cluster.providers.twin.folder import LIMITS
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import KeyPair
from drumline.core.errors import HostError
from local_remote import bare_node

_LINE = "-----{} OPENSSH PRIVATE KEY-----"
HOST_KEY = "\n".join([_LINE.format("BEGIN"), *["QUJD" * 16] * 6, _LINE.format("END")])


def look(folder: Path) -> tuple[bool, str]:
    """Run the script once; return whether it powers off, and what it says."""
    script = resources.files("drumline.cluster.life").joinpath("limits.sh")
    words = ["/bin/sh", str(script), str(folder), "touch", str(folder / "off; 'now'")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    off = folder / "off; 'now'"
    ended = off.exists()
    off.unlink(missing_ok=True)
    return ended, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("deadline", "idle", "busy_ago", "ends", "said"),
    [
        (None, None, None, False, ""),
        (+60, None, None, False, ""),
        (-1, None, None, True, "deadline has passed"),
        (-1, "never", 0, True, "deadline has passed"),
        ("soon", None, None, False, "is no number: soon"),
        (+60, "never", 10_000, False, ""),
        (+60, "5", 299, False, ""),
        (+60, "5", 301, True, "no job for 5 minutes"),
        (+60, "0.5", 31, True, "no job for 0.5 minutes"),
        (+60, "0.5", 20, False, ""),
        (+60, "5", None, False, ""),
        (+60, "1; reboot", 10_000, False, "is no number"),
        (None, "1", 61, True, "no job for 1 minutes"),
    ],
)
def test_the_script(tmp_path, deadline, idle, busy_ago, ends, said):
    folder = tmp_path / "with a space"
    folder.mkdir()
    now = time.time()
    if deadline is not None:
        text = deadline if isinstance(deadline, str) else str(int(now) + deadline)
        (folder / "deadline").write_text(text + "\n")
    if idle is not None:
        (folder / "idle_minutes").write_text(f"{idle}\n")
    if busy_ago is not None:
        (folder / "busy").touch()
        os.utime(folder / "busy", (now - busy_ago, now - busy_ago))
    before = sorted(folder.iterdir())
    ended, told = look(folder)
    assert ended == ends
    assert said in told
    assert sorted(folder.iterdir()) == before, "it writes nothing"


def test_idle_counts_from_the_beginning_without_a_job(tmp_path):
    (tmp_path / "idle_minutes").write_text("5")
    assert look(tmp_path) == (False, "")
    past = time.time() - 400
    os.utime(tmp_path / "idle_minutes", (past, past))
    assert look(tmp_path)[0]


def test_a_node_that_is_set_up_is_not_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_BUSY_S", 0.01)
    node, lost = bare_node(tmp_path / "a node"), bare_node(tmp_path / "lost", 1)

    async def hang_up(*_, **__):
        raise HostError("worker1: the connection is lost")

    monkeypatch.setattr(lost, "run", hang_up)

    async def main() -> None:
        touched = asyncio.Event()

        async def run(*words, **options):
            await bare_node(tmp_path / "a node").run(*words, **options)
            touched.set()
            await asyncio.sleep(60)

        monkeypatch.setattr(node, "run", run)
        async with limits.kept_busy([lost, node]):
            await asyncio.wait_for(touched.wait(), 30)

    asyncio.run(main())
    assert (tmp_path / "a node" / "limits" / "busy").exists()


def told(*, user: str = "ubuntu", idle_minutes: float | None = 60.0) -> str:
    spec = ClusterSpec(name="lab", provider="ec2", idle_minutes=idle_minutes, ec2={"user": user})
    return cloud_config(
        spec,
        authorized_key="ssh-ed25519 AAAA lab\n",
        host_key=KeyPair(private=HOST_KEY, public="ssh-ed25519 BBBB worker0"),
        hours=2.5,
    )


def elsewhere(folder: Path, *, user: str = "ubuntu", **changes) -> str:
    """What a node is told, but about another folder than R."""
    return told(user=user, **changes).replace(f"/home/{user}/drumline", str(folder))


def test_what_a_node_is_told():
    text = told()
    assert text == told(), "the same each time, for the client token's sake"
    assert text.startswith("#cloud-config\n")
    assert len(text.encode()) < USER_DATA_BYTES * 3 // 4
    config = yaml.safe_load(text)
    assert config["ssh_keys"]["ed25519_private"] == HOST_KEY + "\n"
    assert config["ssh_keys"]["ed25519_public"] == "ssh-ed25519 BBBB worker0"
    assert config["ssh_authorized_keys"] == ["ssh-ed25519 AAAA lab"]
    files = {file["path"]: file for file in config["write_files"]}
    assert files["/usr/local/sbin/drumline-limits"]["content"] == LIMITS.read_text()
    service = files["/etc/systemd/system/drumline-limits.service"]["content"]
    assert "drumline-limits /home/ubuntu/drumline/limits /usr/bin/systemctl poweroff" in service
    assert "shutdown --no-wall -h" in files["/usr/local/sbin/drumline-fallback"]["content"]
    assert "poweroff" in str(config["bootcmd"])


def test_the_limits_are_written_once(tmp_path):
    """The very command of the first boot, run here: the deadline counts from boot."""
    folder = tmp_path / "R"
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    config = yaml.safe_load(elsewhere(folder, user=user, idle_minutes=None))
    prepare = config["runcmd"][0]
    subprocess.run(prepare, check=True, timeout=20)
    booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    deadline = int((folder / "limits" / "deadline").read_text())
    assert abs(deadline - (booted + 2.5 * 3600)) < 60
    assert (folder / "limits" / "idle_minutes").read_text() == "never\n"
    (folder / "limits" / "deadline").write_text("1")
    subprocess.run(prepare, check=True, timeout=20)
    assert (folder / "limits" / "deadline").read_text() == "1", "a moved deadline stays"


def test_the_fallback_follows_the_deadline(tmp_path):
    """The shutdown that is planned in case the timer fails moves when the deadline moves."""
    limits = tmp_path / "limits"
    limits.mkdir()
    text = next(
        file["content"]
        for file in yaml.safe_load(elsewhere(tmp_path))["write_files"]
        if file["path"].endswith("fallback")
    ).replace("/run/drumline-fallback", str(tmp_path / "planned"))
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "shutdown").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (tools / "shutdown").chmod(0o755)

    def run() -> list[str]:
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        subprocess.run(["/bin/sh", "-c", text], env=environment, check=True, timeout=20)
        asked = tmp_path / "asked"
        return asked.read_text().splitlines() if asked.exists() else []

    assert run() == [], "no deadline, no plan"
    (limits / "deadline").write_text(str(int(time.time()) + 3600 + 30))
    assert run() == ["-c", "--no-wall -h +70"]
    assert run() == ["-c", "--no-wall -h +70"], "once for each deadline"
    (limits / "deadline").write_text(str(int(time.time()) - 99_999))
    assert run()[-1] == "--no-wall -h +1"
