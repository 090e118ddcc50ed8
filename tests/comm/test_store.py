"""Where ranks meet: on the loopback alone, by all three methods, and with a word when it fails."""

import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from drumline.comm.store import build_store, serve_store
from drumline.core.errors import CommError


def listeners() -> list[str]:
    """Addresses that TCP sockets of this machine listen on, with their ports, in hex."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    lines += Path("/proc/net/tcp6").read_text().splitlines()[1:]
    return [line.split()[1] for line in lines if line.split()[3] == "0A"]


def test_store_listens_on_the_loopback_alone():
    store = serve_store("127.0.0.1", 0, 5)
    mine = [address for address in listeners() if address.endswith(f":{store.port:04X}")]
    assert mine == [f"0100007F:{store.port:04X}"]


def test_port_in_use_is_named_with_a_way_out():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommError, match=rf"127\.0\.0\.1:{port}.*choose another port"):
            serve_store("127.0.0.1", port, 5)


def meet(rank, world_size, init, folder):
    store = build_store(init, rank=rank, rendezvous=Path(folder), tag="0", timeout_s=20)
    store.set(f"hello-{rank}", str(rank))
    total = sum(int(store.get(f"hello-{other}")) for other in range(world_size))
    dist.barrier()  # the leader serves until all have read
    return total


@pytest.mark.parametrize("init", ["tcp", "file", "file://{folder}/mine"])
def test_ranks_meet(run_ranks, tmp_path, init):
    init = init.format(folder=tmp_path)
    assert run_ranks(meet, 3, init, str(tmp_path)) == [3, 3, 3]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_that_cannot_be_opened_is_told_at_once(tmp_path, rank):
    (tmp_path / "folder").mkdir()
    for path in ("/proc/drumline/meeting", "/proc/drumline-meeting", tmp_path / "folder"):
        with pytest.raises(CommError, match=rf"ranks cannot meet by the file {path}: .+init: tcp"):
            build_store(f"file://{path}", rank=rank, rendezvous=tmp_path, tag="0", timeout_s=1)


def test_env_without_address_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(CommError, match="MASTER_ADDR and MASTER_PORT"):
        build_store("env", rank=0, rendezvous=tmp_path, tag="0", timeout_s=1)


def test_nobody_there_is_an_error_within_the_timeout(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    init = f"tcp://127.0.0.1:{port}"
    with pytest.raises(CommError, match="nobody answers"):
        build_store(init, rank=1, rendezvous=tmp_path, tag="0", timeout_s=1)
