"""`RpcAgents`: the RPC agents of all ranks; joining, being called, naming who is lost, leaving.

An RPC agent runs whatever it is sent, so nobody else may reach it. `torch.distributed.rpc.init_rpc`
opens a store of its own on every interface, and a gloo group besides. Here the agent gets the store
that ranks have met at already, and one transport:

    store (drumline.comm.store)     listens on the one address that the ranks were told
    TensorPipe agent of each rank   one TCP listener, on the interface that leads to the leader

Messages and tensors take that one way, also between ranks of one machine: shared memory would pass
by the links of simulated nodes. Each agent serves calls by ONE thread, in the order in which they
come. So microbatches pass a part in order, and a part needs no lock; in return no function that is
called may wait for another call.

    leader                                       every other rank
    RRefs to all parts ◄────── collect ───────── serve: offers its part, and waits
    calls, while `watching`                      (its agent's thread does what is called)
    leave: says that all is done ──────────────► serve returns
    leave: goes last ◄──────── all gather ─────► leave

Where a call fails, the leader asks every rank for a sign of life: a process that is gone is known
by its broken connection, at once; one that is stopped, or cut off, by its missing heartbeat, after
`timeout_s`. The others learn it from the leader, or from the heartbeat themselves.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed import PrefixStore, Store
from torch.futures import Future
from torch.optim import Optimizer

from drumline.comm import LOOPBACK, StoreBarrier
from drumline.comm.group import interface_towards
from drumline.comm.lost_peers import LostPeerError
from drumline.comm.store import run_on_daemon
from drumline.core.errors import CommError
from drumline.core.formatting import name_ranks
from drumline.core.task import LONG_TIMEOUT_S
from drumline.parallel.rpc.heartbeat import Heartbeat

_INTERFACE = "TP_SOCKET_IFNAME"  # what TensorPipe reads
_TIMED_OUT = "RPC ran for more than set timeout"
_ANSWER_S = 2.0
_SHUTDOWN_S = 5.0


@dataclass
class Process:
    """What RPC has one of in a process, and called functions find there without being sent it."""

    joined: bool = False
    offer: object = None
    """what the leader may have an RRef to"""
    optimizer: Optimizer | None = None
    """of its part, made before the leader's call asks for it"""


here = Process()


def join_rpc(
    store: Store, *, rank: int, world_size: int, timeout_s: float, leader: str = LOOPBACK
) -> RpcAgents:
    """Start this rank's RPC agent; every rank calls this, once, and it blocks until all have.

    Whoever serves the store keeps it until all have left. A call may take `timeout_s`, and a rank
    be silent for as long. Calls are taken on the interface that leads to the `leader`'s address.

    Raises:
        PeerError: some rank has not come in time; says which.
        LostPeerError: some rank has come, and gone again.
        CommError: no interface leads to the leader, or this process has joined before.
    """
    if here.joined:
        raise CommError(
            "this process has joined RPC agents before, and torch binds RRefs to the first for "
            "good; keep them until the end, or start new processes"
        )
    _pin_interface(leader)
    with warnings.catch_warnings():  # what the leader sends functions of, before calls come
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        import torch.distributed.optim  # noqa: F401
    own = _connect("rpc", store, timeout_s)
    StoreBarrier(own, rank=rank, world_size=world_size).wait_for_all(
        "join the RPC agents", timeout_s
    )
    heartbeat = Heartbeat(
        _connect("rpc/heartbeat", store, timeout_s),
        rank=rank,
        world_size=world_size,
        timeout_s=timeout_s,
    )
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=1, rpc_timeout=timeout_s, _transports=["uv"], _channels=["basic"]
    )
    dist_autograd._init(rank)
    try:
        agent = rpc.TensorPipeAgent(
            PrefixStore("agent", own), _worker_name(rank), rank, world_size, options, {}, []
        )
    except RuntimeError as error:
        raise heartbeat.wait_for_loss(timeout_s) or error from None
    rpc.api._init_rpc_states(agent)
    here.joined = True
    return RpcAgents(agent, own, heartbeat, rank=rank, world_size=world_size)


def _connect(prefix: str, store: Store, timeout_s: float) -> Store:
    """Open a connection more: on a single one, a thread that waits keeps all others waiting."""
    clone: Callable[[], Store] | None = getattr(store, "clone", None)  # an older torch has none
    connected = PrefixStore(prefix, store if clone is None else clone())
    connected.set_timeout(timedelta(seconds=timeout_s))
    return connected


def _pin_interface(leader: str) -> None:
    if _INTERFACE in os.environ:
        return
    name = interface_towards(leader)
    if name is None:
        raise CommError(
            f"no interface of this machine leads to {leader}, and RPC must not listen on another; "
            f"set {_INTERFACE} to the name of the right one"
        )
    os.environ[_INTERFACE] = name


class RpcAgents(contextlib.AbstractContextManager["RpcAgents"]):
    """The agents of all ranks, as one rank sees them; leave them by the end of the `with` block."""

    def __init__(
        self, agent: Any, store: Store, heartbeat: Heartbeat, *, rank: int, world_size: int
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = heartbeat.timeout_s
        self._agent = agent
        self._store = store
        self._barrier = StoreBarrier(store, rank=rank, world_size=world_size)
        self._heartbeat = heartbeat

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.leave()
        else:
            self._abandon(error)

    def offer(self, part: object) -> None:
        """Let the leader use a part, and block until it has hold of it; every other rank calls."""
        here.offer = part
        self._wait_for_all("offer its part", LONG_TIMEOUT_S)

    def serve(self, part: object) -> None:
        """Offer a part, and block until the leader leaves, or a rank is lost (LostPeerError)."""
        self.offer(part)
        while not self._heartbeat.done.wait(self._heartbeat.every_s):
            self._heartbeat.check()

    def collect(self, own: object) -> list[Any]:
        """Return RRefs to what each rank serves, the leader's own first; only the leader calls."""
        self._wait_for_all("offer its part", LONG_TIMEOUT_S)
        calls = [
            rpc.rpc_async(_worker_name(other), _offered) for other in range(1, self.world_size)
        ]
        with self.watching():
            return [rpc.RRef(own), *(call.wait() for call in calls)]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Turn errors of calls in here into one that names the rank that is gone, if one is."""
        self._heartbeat.check()
        try:
            yield
        except RuntimeError as error:  # what RPC raises, and what most of torch does, too
            loss = self._find_loss(error)
            if loss is not None:
                raise loss from error
            if _TIMED_OUT in str(error):
                raise CommError(
                    f"a call took longer than timeout_s = {self.timeout_s:g} s, though all ranks "
                    f"live; raise timeout_s, or take smaller batches"
                ) from error
            raise

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Let the error of a collective in here name the rank that is gone, if the beats know."""
        try:
            yield
        except RuntimeError as error:
            loss = self._heartbeat.wait_for_loss(self.timeout_s + 4 * self._heartbeat.every_s)
            if loss is not None:
                raise loss from error
            raise

    def leave(self) -> None:
        """End this rank's agent when all ranks have come to do so, within `timeout_s`; all call."""
        if self.rank == 0:
            self._heartbeat.announce_done()
        try:
            self._wait_for_all("leave", self.timeout_s)
        except (LostPeerError, CommError) as error:
            self._abandon(error)
            raise
        self._heartbeat.close()
        with contextlib.suppress(RuntimeError):  # all have come: only this one's own goodbye fails
            rpc._delete_all_user_and_unforked_owner_rrefs(timedelta(seconds=_SHUTDOWN_S))
            self._agent.join(shutdown=True, timeout=_SHUTDOWN_S)
        self._end()

    def _abandon(self, error: BaseException) -> None:
        """End this rank's agent at once, and let the others know."""
        message = f"rank {self.rank} gave up: {type(error).__name__}: {error}"
        loss = self._heartbeat.announce_lost([self.rank], message)
        self._heartbeat.close()
        self._end(without=loss.ranks)

    def _end(self, without: Sequence[int] = ()) -> None:
        """Shut the agent down; the leader, whose process may serve the store, goes last."""
        here.offer = here.optimizer = None

        def wait_for_departures() -> None:
            self._store.set(f"left/{self.rank}", "1")
            if self.rank == 0:
                others = set(range(self.world_size)) - set(without)
                marks = [f"left/{other}" for other in others]
                self._store.wait(marks, timedelta(seconds=_SHUTDOWN_S))

        for step in (partial(rpc.shutdown, graceful=False), wait_for_departures):
            with contextlib.suppress(RuntimeError, TimeoutError):  # nobody may be there to answer
                run_on_daemon(step).result(_SHUTDOWN_S)

    def _wait_for_all(self, what: str, within_s: float) -> None:
        """Wait until every rank has come to the same point; ends early when one is lost."""
        # on a thread: a stopped store never answers
        waiting = run_on_daemon(partial(self._barrier.wait_for_all, what, within_s))
        while True:
            with contextlib.suppress(TimeoutError):
                return waiting.result(timeout=self._heartbeat.every_s)
            self._heartbeat.check()

    def _find_loss(self, error: RuntimeError) -> LostPeerError | None:
        """Find out whether a call failed for a lost rank: ask all, and listen for their beats."""
        others = range(1, self.world_size) if self.rank == 0 else [0]
        calls = {other: _ask(other, min(_ANSWER_S, self.timeout_s)) for other in others}
        answers = {other: _outcome_of(call) for other, call in calls.items()}
        gone = [other for other, answer in answers.items() if answer == "gone"]
        if gone:
            last = str(error).strip().splitlines()[-1:]
            return self._heartbeat.announce_lost(
                gone, f"{name_ranks(gone)} is gone: {' '.join(last)}"
            )
        if all(answer == "answers" for answer in answers.values()):
            return None
        return self._heartbeat.wait_for_loss(self.timeout_s + 4 * self._heartbeat.every_s)


def _ask(other: int, timeout_s: float) -> Future[None] | None:
    call: Future[None] | None = None
    with contextlib.suppress(RuntimeError):
        call = rpc.rpc_async(_worker_name(other), _answer, timeout=timeout_s)
    return call


def _outcome_of(call: Future[None] | None) -> str:
    if call is None:
        return "gone"
    try:
        call.wait()
    except RuntimeError as error:
        return "silent" if _TIMED_OUT in str(error) else "gone"
    return "answers"


def _answer() -> None:
    """Be there."""


def _offered() -> Any:
    return rpc.RRef(here.offer)


def _worker_name(rank: int) -> str:
    return f"rank{rank}"
