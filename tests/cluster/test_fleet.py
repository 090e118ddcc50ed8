"""Connections to real SSH servers, and to things that only look like one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from drumline.cluster.providers import Machine
from drumline.cluster.ssh.connection import MAX_CHANNELS
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.keys import Origin, make_key_pair, pin_host_key
from drumline.core.errors import ClusterError, HostError
from drumline.core.files import write_atomic
from sshd import RELAY, alive, free_port, wait_until


async def lines_of(process):
    """Give the lines of a command's output as they come."""
    received = b""
    while chunk := await process.read():
        *complete, received = (received + chunk).split(b"\n")
        for line in complete:
            yield line
    if received:
        yield received


def open_fleet(servers, *found, **options):
    machines = [server.machine for server in (found or servers.all)]
    return Fleet.open(machines, servers.home, timeout_s=options.pop("timeout_s", 20), **options)


def test_commands_run_on_all_nodes(servers):
    for node in range(3):
        servers.start(node, more="MaxSessions 3\n")
    said = []

    async def main():
        async with open_fleet(servers, report=lambda *words: said.append(words)) as fleet:
            roots = [remote.machine.root for remote in fleet.remotes]
            assert roots == [f"{server.home}/drumline" for server in servers.all]
            odd = ["printf", "%s|", "a b", "it's", "$HOME", "*", "", "ü\n;", '"\\']
            done = await fleet.all(lambda remote: remote.run(odd))
            assert {one.stdout.decode() for one in done} == {
                "".join(f"{word}|" for word in odd[2:])
            }
            done = await fleet.leader.run(["sh", "-c", "cat; echo off >&2; exit 7"], given=b"in")
            assert (done.code, done.stdout, done.stderr) == (7, b"in", b"off\n")
            assert (await fleet.leader.run(["no-such-command"])).code == 127
            assert (await fleet.leader.run(["sh", "-c", "kill -9 $$"])).code == 137
            big = await fleet.leader.run(["head", "-c", "30000000", "/dev/zero"])
            assert len(big.stdout) == 30_000_000
            echo = await fleet.leader.run(["cat"], given=bytes(5_000_000))
            assert len(echo.stdout) == 5_000_000
            # More commands than sessions are allowed on a connection, and one that reads nothing
            many = await asyncio.gather(
                *(fleet.leader.run(["true"], given=bytes(100_000)) for _ in range(30))
            )
            assert [one.code for one in many] == [0] * 30

    asyncio.run(main())
    assert ("worker2", "connected") in said


async def write_on(flow):
    while True:
        await flow.write(bytes(1000))


def test_a_flow_is_read_while_it_is_written(servers):
    servers.start(0)

    async def main():
        async with open_fleet(servers) as fleet:
            flow = await fleet.leader.start(["cat"])
            lines = lines_of(flow)
            for word in (b"one", b"x" * 3_000_000, b"\xff"):
                await flow.write(word + b"\n")
                assert await anext(lines) == word
            await flow.write(b"no end")
            await flow.end_input()
            assert [line async for line in lines] == [b"no end"]
            assert (await flow.wait()).code == 0
            flow = await fleet.leader.start(["sh", "-c", "echo wrong >&2; exit 3"])
            with pytest.raises(HostError, match=r"worker0 .*before it had read.*wrong"):
                await write_on(flow)
            assert (await flow.wait()).code == 3

    asyncio.run(main())


def test_what_is_canceled_ends_on_the_node(servers):
    servers.start(0)
    stubborn = "trap '' HUP TERM; echo $$; while :; do sleep 0.1; done"

    async def pid_of(flow) -> int:
        return int(await anext(lines_of(flow)))

    async def main():
        pids = []
        async with open_fleet(servers) as fleet:
            remote = fleet.leader
            root = remote.machine.root
            with pytest.raises(HostError, match=r"has not ended within 0\.5 s") as caught:
                await remote.run(["sh", "-c", f"echo $$ > '{root}1'; sleep 99"], timeout_s=0.5)
            assert caught.value.fields["reason"] == "timeout"
            pids.append(int(Path(f"{root}1").read_text()))
            running = asyncio.create_task(
                remote.run(["sh", "-c", f"echo $$ > '{root}2'; sleep 99"])
            )
            file = Path(f"{root}2")
            while not (file.exists() and file.read_text()):
                await asyncio.sleep(0.02)
            running.cancel()
            pids.append(int(file.read_text()))
            flow = await remote.start(["sh", "-c", stubborn])
            pids.append(await pid_of(flow))
            flow.stop()
            survivor = await remote.run(
                ["sh", "-c", "setsid sleep 99 < /dev/null > /dev/null 2>&1 & echo $!"]
            )
            kept = await remote.start(["sh", "-c", "echo $$; sleep 99 & wait"])
            pids.append(await pid_of(kept))  # ends with the connection
        return pids, int(survivor.stdout)

    pids, survivor = asyncio.run(main())
    try:
        wait_until(lambda: not any(map(alive, pids)), "the end of canceled commands")
        assert alive(survivor)
    finally:
        os.kill(survivor, signal.SIGKILL)


def test_a_forward_is_on_the_loopback_only(servers):
    servers.start(0)

    async def serve(_, writer):
        writer.write(b"from the node")
        writer.close()

    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with open_fleet(servers) as fleet:
                local = await fleet.leader.forward(port)
                reader, writer = await asyncio.open_connection("127.0.0.1", local)
                assert await reader.read() == b"from the node"
                writer.close()
                listening = [
                    line.split()[1]
                    for table in ("tcp", "tcp6")
                    for line in Path(f"/proc/net/{table}").read_text().splitlines()
                    if line.split()[1].endswith(f":{local:04X}") and line.split()[3] == "0A"
                ]
                assert listening == [f"0100007F:{local:04X}"]

    asyncio.run(main())


def test_an_impostor_is_refused(servers, tmp_path):
    server = servers.start(0)
    other = make_key_pair("")
    pin_host_key(servers.home, 0, other.public, Origin.INJECTED)
    log = server.folder / "log"

    async def main():
        async with open_fleet(servers):
            raise AssertionError("let in")

    with pytest.raises(HostError, match="impostor is refused") as caught:
        asyncio.run(main())
    assert caught.value.fields == {"node": 0, "host": "127.0.0.1", "reason": "impostor"}
    assert asyncssh.import_public_key(other.public).get_fingerprint() in caught.value.message
    assert "Accepted" not in log.read_text()
    # One whose keys are of another kind, too
    ecdsa = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    pin_host_key(servers.home, 0, ecdsa.export_public_key().decode(), Origin.GIVEN)
    with pytest.raises(HostError, match="impostor is refused"):
        asyncio.run(main())


def test_a_key_that_is_not_let_in(servers):
    servers.start(0)
    write_atomic(servers.home.ssh / "id_ed25519", make_key_pair("").private, mode=0o600)

    async def main():
        async with open_fleet(servers):
            raise AssertionError("let in")

    with pytest.raises(HostError, match=r"refuses .* with the cluster's key") as caught:
        asyncio.run(main())
    assert caught.value.fields["reason"] == "auth"


def test_the_users_configuration_has_no_effect(servers, tmp_path, monkeypatch):
    servers.start(0)
    user = tmp_path / "user"
    (user / ".ssh").mkdir(parents=True)
    trap = user / "trapped"
    (user / ".ssh" / "config").write_text(
        f"Host *\n  ProxyCommand touch {trap}\n  User nobody\n  Port 1\n  HostName 192.0.2.1\n"
    )
    monkeypatch.setenv("HOME", str(user))

    async def main():
        async with open_fleet(servers) as fleet:
            assert (await fleet.leader.run(["true"])).code == 0

    asyncio.run(main())
    assert not trap.exists()


def test_through_a_proxy(servers):
    server = servers.start(0)
    port = server.machine.port
    proxy = (sys.executable, "-c", RELAY, str(port))
    machine = replace(server.machine, host="no such name", port=1, proxy=proxy)

    async def main(machine):
        async with Fleet.open([machine], servers.home, timeout_s=1) as fleet:
            assert (await fleet.leader.run(["echo", "hi"])).stdout == b"hi\n"

    asyncio.run(main(machine))
    for command, words in (
        (("sh", "-c", "echo no way >&2; exit 4"), "ended with code 4 and said: no way"),
        (("/no/such/proxy",), "cannot be started"),
    ):
        with pytest.raises(HostError, match=words) as caught:
            asyncio.run(main(replace(machine, proxy=command)))
        assert caught.value.fields["reason"] == "proxy"


@contextmanager
def listener(answer: bytes | None):
    """A port that accepts, and says `answer`; None: nothing ever."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            held = []
            while not ended.is_set():
                try:
                    held.append(server.accept()[0])
                except TimeoutError:
                    continue
                if answer is not None:
                    held[-1].sendall(answer)
                    held.pop().close()
            for one in held:
                one.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            ended.set()
            thread.join()


def test_nodes_that_do_not_come_are_all_named(servers):
    good = servers.start(0)
    with listener(None) as silent, listener(b"HTTP/1.0 400 Bad\r\n\r\n") as web:
        ports = {1: silent, 2: web, 3: free_port()}
        others = [
            Machine(node=node, host="127.0.0.1", address="", user="x", port=port)
            for node, port in ports.items()
        ]
        said = []

        async def main():
            machines = [good.machine, *others]
            async with Fleet.open(
                machines, servers.home, timeout_s=2, report=lambda *words: said.append(words)
            ):
                raise AssertionError("all there")

        with pytest.raises(HostError) as caught:
            asyncio.run(main())
    message = caught.value.message
    assert "3 nodes: " in message
    assert "worker0" not in message
    assert "worker1 (127.0.0.1): port" in message
    assert "no SSH banner comes" in message
    assert "something else than SSH answers" in message
    assert "'HTTP/1.0 400 Bad'" in message
    assert "is closed: it is still booting" in message
    assert ("worker3", "waiting for SSH: booting") in said
    wait_until(lambda: not good.children(), "the end of the good node's connection")


def test_a_node_that_boots_late_is_waited_for(servers):
    server = servers.start(0)
    server.end()
    said = []

    async def main():
        async with Fleet.open(
            [server.machine], servers.home, timeout_s=20, report=lambda *words: said.append(words)
        ) as fleet:
            return await fleet.leader.run(["true"])

    async def later():
        task = asyncio.create_task(main())
        while not said:
            await asyncio.sleep(0.02)
        server.process = await asyncio.to_thread(restart, server)
        return await task

    assert asyncio.run(later()).code == 0
    assert said[0] == ("worker0", "waiting for SSH: booting")


def restart(server):
    import subprocess

    return subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-f", server.folder / "sshd_config", "-E", server.folder / "log"],
        stdin=subprocess.DEVNULL,
    )


def test_a_node_that_hangs_is_noticed_and_named(servers, monkeypatch):
    monkeypatch.setattr("drumline.cluster.ssh.connection.ALIVE_S", 1)  # else it takes 15 s
    servers.start(0)
    hung = servers.start(1)

    async def main():
        async with open_fleet(servers) as fleet:

            async def work(remote):
                done = await remote.run(["sleep", "0" if remote.machine.node == 0 else "99"])
                finished.append((remote.machine.node, done.code))

            running = asyncio.create_task(fleet.all(work))
            await asyncio.sleep(0.5)
            hung.stop()
            with pytest.raises(HostError, match=r"^worker1 .*the connection is lost") as caught:
                await asyncio.wait_for(running, 60)
            assert caught.value.fields["reason"] == "lost"
            with pytest.raises(HostError, match=r"worker1 .*connection is lost"):
                await fleet.remotes[1].run(["true"])

    finished = []
    asyncio.run(main())
    assert finished == [(0, 0)]


def test_a_shell_that_talks_and_one_without_python(servers, tmp_path):
    talks = 'ForceCommand echo welcome; sh -c "$SSH_ORIGINAL_COMMAND"\n'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    servers.start(0, more=talks)
    servers.start(1, env=f"PATH={tmp_path}/bin")

    async def main():
        async with open_fleet(servers):
            raise AssertionError("let in")

    with pytest.raises(HostError, match="2 nodes: ") as caught:
        asyncio.run(main())
    assert "prints 'welcome\\n' before each command" in caught.value.message
    assert "worker1 (127.0.0.1): it has no python3 of 3.8 or newer" in caught.value.message


def test_a_failure_of_our_own_names_the_node(servers):
    for node in range(2):
        servers.start(node)

    async def main():
        async with open_fleet(servers) as fleet:
            finished = []

            async def fail(remote):
                if remote.machine.node:
                    raise ClusterError("the disk is full", path="/x")
                await asyncio.sleep(0.1)
                finished.append(remote.machine.name)

            with pytest.raises(HostError, match=r"worker1 .*the disk is full") as caught:
                await fleet.all(fail)
            assert caught.value.fields["path"] == "/x"
            assert finished == ["worker0"], "one that is well is not cut short"
            # What is canceled gives its sessions back
            for _ in range(2 * MAX_CHANNELS):
                task = asyncio.create_task(fleet.leader.run(["sleep", "99"]))
                await asyncio.sleep(0.02)
                task.cancel()
            assert (await fleet.leader.run(["true"], timeout_s=30)).code == 0

    asyncio.run(main())
