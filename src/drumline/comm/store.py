"""Where ranks meet: the key-value store behind `init: env | tcp | file`.

torch's own `tcp://` and `env://` methods open their store on every interface of the machine, and
whoever reaches it may write to it. So the leader opens the listening socket itself, on the one
address that the ranks were told, and hands it to `TCPStore`.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from torch.distributed import FileStore, PrefixStore, Store, TCPStore

from drumline.core.errors import CommError
from drumline.core.nodes import node_addresses

LOOPBACK = "127.0.0.1"


def serve_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """Open a store that listens on `host` alone; port 0 takes a free one.

    Raises:
        CommError: the port is taken, or the address is not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        way_out = (
            "the address must be one of this machine's, where rank 0 runs"
            if elsewhere
            else "choose another port, or write init: tcp to get a free one"
        )
        raise CommError(
            f"cannot listen on {host}:{port} for the ranks to meet: {error.strerror}; {way_out}",
            port=port,
        ) from None
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """Connect to the store that another process serves."""
    try:
        return TCPStore(
            host,
            port,
            is_master=False,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:  # torch's DistNetworkError and DistStoreError are RuntimeErrors
        raise CommError(
            f"nobody answers at {host}:{port}, where ranks should meet, within {timeout_s:g} s; "
            f"is rank 0 running, and the address right?"
        ) from error


def build_store(init: str, *, rank: int, rendezvous: Path, tag: str, timeout_s: float) -> Store:
    """Open the store that `init` names; every rank calls this, the leader serves.

    Args:
        init: env, tcp, tcp://HOST:PORT, file or file:///PATH.
        rank: this rank; rank 0 is the leader.
        rendezvous: a folder that all ranks see, for `tcp` and `file` without an address.
        tag: new each time the group starts; a used rendezvous is not used again.
        timeout_s: how long to wait for the others.

    Raises:
        CommError: the store cannot be opened, or nobody serves it.
    """
    if init == "env":
        return _env_store(rank, timeout_s)
    if init.startswith("file"):
        path = Path(init.removeprefix("file://")) if init != "file" else rendezvous / "store"
        return PrefixStore(tag, _open_file_store(path))
    if init == "tcp":
        return announced_store(
            rank, rendezvous / f"address.{tag}", timeout_s, host=rendezvous_host()
        )
    url = urlsplit(init)
    host, port = url.hostname or LOOPBACK, url.port or 0
    opener = serve_store if rank == 0 else join_store
    return opener(host, port, timeout_s)


def _open_file_store(path: Path) -> FileStore:
    """Meet by a file, which may be there already; torch itself would try to open it for ever."""
    try:
        path.parent.mkdir(exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
        return FileStore(str(path))
    except (OSError, RuntimeError) as error:  # torch's DistStoreError is a RuntimeError
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CommError(
            f"ranks cannot meet by the file {path}: {why}; name one in init: file:///PATH that "
            f"every rank can write to, or write init: tcp"
        ) from None


def _env_store(rank: int, timeout_s: float) -> Store:
    """Follow MASTER_ADDR and MASTER_PORT; an elastic agent may be serving there already."""
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        raise CommError(
            "init: env needs MASTER_ADDR and MASTER_PORT (a number) in the environment; "
            "set them, or write init: tcp"
        ) from None
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    opener = serve_store if rank == 0 and not agent_serves else join_store
    store = opener(host, port, timeout_s)
    if not agent_serves:
        return store
    # torchrun's agent keeps its store over restarts, with all that earlier attempts wrote there
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def rendezvous_host() -> str:
    """Where ranks meet that were told no address: at simulated node 0, else on the loopback."""
    return next(iter(node_addresses()), LOOPBACK)


def announced_store(rank: int, note: Path, timeout_s: float, host: str = LOOPBACK) -> TCPStore:
    """Meet at `host`: rank 0 takes a free port there and leaves a note of it for the others."""
    if rank == 0:
        store = serve_store(host, 0, timeout_s)
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(".draft")
        draft.write_text(str(store.port))
        draft.replace(note)
        return store
    deadline = time.monotonic() + timeout_s
    while not note.exists():
        if time.monotonic() > deadline:
            raise CommError(f"rank 0 left no address in {note} within {timeout_s:g} s")
        time.sleep(0.005)
    return join_store(host, int(note.read_text()), timeout_s)
