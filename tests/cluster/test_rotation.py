"""Host keys that nodes make themselves, cut short at each step."""

from __future__ import annotations

import asyncio

import pytest

from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.keys import Origin, Pin, host_key, read_pins, write_pins
from drumline.cluster.ssh.rotation import HostKeyPlace, rotate_host_key
from drumline.core.errors import HostError


def place_of(server) -> HostKeyPlace:
    """Where a test's server has its key; its folder has a space in it."""
    reload = ("sh", "-c", f"kill -HUP $(cat '{server.folder}/pid')")
    return HostKeyPlace(path=str(server.host_key), reload=reload)


def rotate(servers, *, place=None) -> list[bool]:
    by_node = {server.machine.node: server for server in servers.all}

    async def main():
        machines = [server.machine for server in servers.all]
        async with Fleet.open(machines, servers.home, timeout_s=20) as fleet:
            return await fleet.all(
                lambda remote: rotate_host_key(
                    remote, servers.home, place or place_of(by_node[remote.machine.node])
                )
            )

    return asyncio.run(main())


def test_keys_are_exchanged_once(servers):
    for node in range(2):
        servers.start(node)
    before = [read_pins(servers.home, node) for node in range(2)]
    assert rotate(servers) == [True, True]
    for node, server in enumerate(servers.all):
        (pin,) = read_pins(servers.home, node)
        assert pin.origin is Origin.MADE_THERE
        assert pin.key != before[node][0].key
        assert server.host_key.with_suffix(".pub").read_text().startswith(pin.key)
        assert server.host_key.stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in server.folder.glob("host_key*")) == [
            "host_key",
            "host_key.pub",
        ]
    assert list((servers.home.ssh / "host-keys").iterdir()) == []
    assert rotate(servers) == [False, False]
    # Whoever has the key that the cloud knows is an impostor from now on
    servers.all.pop(0).end()
    pins = read_pins(servers.home, 0)
    servers.start(0)  # shows, and pins, a key made here
    write_pins(servers.home, 0, pins)
    with pytest.raises(HostError, match="impostor"):
        rotate(servers)


def test_what_was_cut_short_is_continued(servers):
    server = servers.start(0)
    (old,) = read_pins(servers.home, 0)
    # The server was not told to read the new key: it shows the old one, and both are pinned
    with pytest.raises(HostError, match="cannot put its new host key in place: no such way"):
        rotate(
            servers,
            place=HostKeyPlace(
                path=str(server.host_key), reload=("sh", "-c", "echo no such way >&2; exit 1")
            ),
        )
    pins = read_pins(servers.home, 0)
    assert [pin.origin for pin in pins] == [Origin.INJECTED, Origin.MADE_THERE]
    assert pins[0] == old
    # Between the renames of the two halves
    moved = server.folder / "host_key.drumline.pub"
    server.host_key.with_suffix(".pub").rename(moved)
    server.host_key.with_suffix(".pub").write_text(host_key(servers.home, 0).public)
    assert rotate(servers) == [True]
    assert read_pins(servers.home, 0) == [pins[1]]
    # The laptop was lost before it had pinned the new key alone
    write_pins(servers.home, 0, [old, Pin(key=pins[1].key, origin=Origin.MADE_THERE)])
    assert rotate(servers) == [True]
    assert read_pins(servers.home, 0) == [pins[1]]


def test_a_machine_of_ones_own_keeps_its_key(servers):
    server = servers.start(0)
    key = server.host_key.read_text()
    write_pins(servers.home, 0, [Pin(key=read_pins(servers.home, 0)[0].key)])
    assert rotate(servers) == [False]
    assert server.host_key.read_text() == key
