"""The key-value store behind `init: env | tcp | file`, and a barrier at it.

torch's own `tcp://` and `env://` methods open their store on every interface of the machine, and
whoever reaches it may write to it. So the leader opens the listening socket itself, on the one
address that the ranks were told, and hands it to `TCPStore`.

`StoreBarrier` serves before and beside the process group. The group's collectives give up after
`timeout_s`, and what they say then names no rank. Here each rank leaves a mark in the store, so
that it is known who has not come; and a wait may be longer where one rank does what the others must
wait for (loading, writing a checkpoint).

Ranks that were started one by one compare what they were started with (`agree`):

    (1) rank 0 leaves its arguments
    (2) each other rank reads them, and leaves a mark if its own are the same;
    (3) if not, it leaves the difference in the place of every mark, so that nobody waits for more

A rank that fails while the others wait (`fail`) leaves its error in the same way.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from torch.distributed import FileStore, PrefixStore, Store, TCPStore

from drumline.core.errors import CommError, PeerError, UsageError
from drumline.core.formatting import listed, name_ranks
from drumline.core.nodes import node_addresses

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
_ANSWER_S = 2.0
_LINGER_S = 0.5
_SAME, _HERE = "the same", "1"


def serve_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """Serve the process group's TCP store on `host` alone; port 0 takes a free one."""
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
    """Connect to the process group's TCP store that another process serves."""
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
    """Open the process group's store that `init` names; every rank calls this, rank 0 serves.

    `init` is env, tcp, tcp://HOST:PORT, file or file:///PATH. Without an address ranks meet in the
    folder `rendezvous`, which all see, under a `tag` that is new each time the group starts.
    """
    if init == "env":
        return _env_store(rank, timeout_s)
    if init.startswith("file"):
        path = Path(init.removeprefix("file://")) if init != "file" else rendezvous / "store"
        return PrefixStore(tag, _open_file_store(path))
    if init == "tcp":
        return announced_store(rank, rendezvous / f"address.{tag}", timeout_s)
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
    """Return the store's host where none is given: simulated node 0, else the loopback."""
    return next(iter(node_addresses()), LOOPBACK)


def announced_store(rank: int, note: Path, timeout_s: float) -> TCPStore:
    """Open a TCP store where rank 0 takes a free port, and leaves a note for the others."""
    host = rendezvous_host()
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


def run_on_daemon(work: Callable[[], T]) -> Future[T]:
    """Run what asks a store on a thread that may stay for good: over a cut link it never ends."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


class StoreBarrier:
    """The ranks of a run, at the store that they all know."""

    def __init__(
        self, store: Store, *, rank: int, world_size: int, name: Callable[[int], str] = str
    ) -> None:
        self.store = store
        self._rank = rank
        self._world_size = world_size
        self._name = name
        self._calls: Counter[str] = Counter()
        """of each label: what a call has left at the store must not count for the next one"""
        self.session = ""
        """told apart from an earlier group at the same store, as torchrun's restarts have it"""

    def barrier(self, within_s: float) -> None:
        """Wait for every rank, as often as there is something to wait for."""
        self._leave("come to wait", _HERE, within_s, again=True)

    def wait_for_all(self, what: str, within_s: float) -> None:
        """Wait until every rank has called this with the same label, once or more; each must.

        Raises:
            PeerError: says which ranks did not come in time, or which one has failed.
        """
        keys = self._leave(what, _HERE, within_s)
        told = {value.decode() for value in self.store.multi_get(keys)} - {_HERE}
        if told:
            time.sleep(2 * _LINGER_S)  # the rank's own error comes first
            rank, _, why = min(told).partition(" ")
            raise PeerError(f"rank {self._name(int(rank))} could not {what}: {why}", rank=int(rank))

    def fail(self, what: str, error: BaseException) -> None:
        """Tell all ranks that wait for this, now or later, that this one will not come."""
        why = f"{self._rank} {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the store may be gone, too
            for key in self._keys(what):
                self.store.set(key, why)
        if self._rank == 0:
            time.sleep(_LINGER_S)  # the store may be ours, and the others have to read it

    def all_gather(self, what: str, value: str, within_s: float) -> list[str]:
        """Return the values of all ranks, in rank order; every rank calls this with its own."""
        keys = self._leave(what, value, within_s, again=True)
        return [value.decode() for value in self.store.multi_get(keys)]

    def _leave(self, what: str, value: str, within_s: float, *, again: bool = False) -> list[str]:
        """Leave a value at the store; return the keys of all ranks' once they are there.

        If it is to be done `again`, each call with the same label waits anew.
        """
        self._calls[what] += again
        keys = self._keys(what)
        self.store.set(keys[self._rank], value)
        self._wait(dict(enumerate(keys)), what, within_s)
        return keys

    def _keys(self, what: str) -> list[str]:
        """Return where each rank leaves its value in the latest call with this label."""
        prefix = f"{self.session}/{what}/{self._calls[what]}"
        return [f"{prefix}/{rank}" for rank in range(self._world_size)]

    def _wait(self, keys: Mapping[int, str], what: str, within_s: float) -> None:
        """Wait for the keys that ranks leave at the store; a PeerError names who has not come."""
        if not keys:
            return
        try:
            self.store.wait(list(keys.values()), timedelta(seconds=within_s))
        except RuntimeError:  # the time is over, or the store is gone: then this raises again
            late = self._find_missing(keys)
            if late:
                names = name_ranks(self._name(rank) for rank in late)
                they = "is it" if len(late) == 1 else "are they"
                reach = "can it" if len(late) == 1 else "can they"
                raise PeerError(
                    f"{names} did not {what} within {within_s:g} s, while rank "
                    f"{self._name(self._rank)} waited; {they} running, and {reach} reach the "
                    f"others?",
                    rank=late[0],
                ) from None

    def _find_missing(self, keys: Mapping[int, str]) -> list[int]:
        """Ask the store who is missing; where it does not answer, we are the one cut off."""

        def ask() -> list[int]:
            return [rank for rank, key in keys.items() if not self.store.check([key])]

        try:
            return run_on_daemon(ask).result(timeout=_ANSWER_S)  # over a cut link it never returns
        except TimeoutError:
            raise PeerError(
                f"rank {self._name(self._rank)} gets no answer from where ranks meet, at rank "
                f"{self._name(0)}; is the network between them cut?",
                rank=self._rank,
            ) from None

    def agree(self, arguments: Mapping[str, str], within_s: float) -> None:
        """Make sure that all ranks were started with the same arguments; every rank calls this.

        If one has others, all ranks raise a UsageError that says which, and what each has.
        """
        first, others = "arguments/0", {r: f"arguments/{r}" for r in range(1, self._world_size)}
        if self._rank == 0:
            self.store.set(first, json.dumps([self._world_size, dict(arguments)]))  # (1)
        else:
            self._wait({0: first}, "come", within_s)
            world_size, theirs = json.loads(self.store.get(first))
            difference = self._compare(arguments, theirs)
            if not difference:
                self.store.set(others[self._rank], _SAME)  # (2)
            else:
                for rank in range(1, max(world_size, self._world_size)):
                    self.store.set(f"arguments/{rank}", difference)  # (3)
        self._wait(others, "come", within_s)
        told = {self.store.get(key).decode() for key in others.values()} - {_SAME}
        if told:
            if self._rank == 0:
                time.sleep(_LINGER_S)  # the store may be ours, and the others have to read it
            raise UsageError(min(told))

    def _compare(self, mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
        """Say what this rank has and rank 0 has not; empty where they have the same."""
        differ = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
        if not differ:
            return ""
        here, there = (
            listed(one.get(key, f"no {key}") for key in differ) for one in (mine, theirs)
        )
        return (
            f"rank {self._name(self._rank)} has {here}, but rank {self._name(0)} has {there}; "
            f"end all ranks, and start them again with the same arguments"
        )
