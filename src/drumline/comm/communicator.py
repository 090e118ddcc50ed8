"""`Communicator`: the collectives as one calls them, each by an algorithm of one's choice.

    comm = Communicator()                              # every rank of the default group
    comm.all_reduce(tensor, Op.MAX, algorithm="halving_doubling")
    handle = comm.broadcast(tensor, root=2, async_op=True)
    …
    handle.wait()
    evens = comm.among([0, 2])                         # only ranks 0 and 2 call this

Here tensors get the shape that the algorithms take (flat, in one piece, on the host), calls are
compared between ranks before they can hang, and asynchronous ones are put in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_default_store

from drumline.comm.agreement import TIMEOUT_S, Agreement
from drumline.comm.algorithms import find_algorithm
from drumline.comm.channel import Channel, Handle
from drumline.comm.layout import deal, describe, flatten, in_place, join, make_room
from drumline.comm.operation import Op
from drumline.comm.pieces import Pieces
from drumline.comm.stream import CommStream
from drumline.core.errors import UsageError
from drumline.core.schedule import DEFAULTS

SMALL = 8
"""groups of up to so many ranks compare their calls unless told otherwise"""


class Communicator:
    """Collectives of a group of ranks; all of them make the same calls in the same order.

    Every call blocks until this rank may use the result, or returns a handle with `wait()` where
    `async_op` is set; the tensors belong to the call until then. Results are in place, or in the
    tensors given for them. Algorithms are those of `drumline.comm.algorithms`.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        channel: Channel | None = None,
        checked: bool | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Join; every rank of the group does so at the same point of the program.

        Args:
            group: torch's process group; None is the default one.
            channel: some of the group's ranks only, or a channel that takes notes.
            checked: compare calls between ranks first; None: in small groups.
            timeout_s: how long others may take to come to a call that is compared.
        """
        self.channel = channel or Channel(group)
        self._stream = CommStream()
        self._timeout_s = timeout_s
        self._checked = checked
        self._agreement: Agreement | None = None
        if self.size > 1 and (self.size <= SMALL if checked is None else checked):
            self._agreement = Agreement(
                _get_default_store(),
                self.channel.global_ranks,
                self.rank,
                timeout_s=timeout_s,
            )

    @property
    def rank(self) -> int:
        """This rank, counted from 0 among those that take part."""
        return self.channel.rank

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return self.channel.size

    def among(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of some of these ranks; only they may call this."""
        return Communicator(
            channel=self.channel.among(ranks), checked=self._checked, timeout_s=self._timeout_s
        )

    def broadcast(
        self, tensor: Tensor, root: int = 0, *, algorithm: str | None = None, async_op: bool = False
    ) -> Handle | None:
        """Give every rank the root's tensor, in place."""
        function = find_algorithm("broadcast", algorithm)
        call = f"broadcast({describe(tensor)}, root {self._root(root)})"
        return self._run(
            call,
            lambda: in_place(tensor, lambda t: function(self.channel, t, root)),
            algorithm,
            async_op,
        )

    def reduce(
        self,
        tensor: Tensor,
        op: Op = Op.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Combine all tensors at the root, in place there; the other ranks keep theirs."""
        function = find_algorithm("reduce", algorithm)
        call = f"reduce({describe(tensor)}, {op}, root {self._root(root)})"
        return self._run(
            call,
            lambda: in_place(tensor, lambda t: function(self.channel, t, root, op)),
            algorithm,
            async_op,
        )

    def all_reduce(
        self,
        tensor: Tensor,
        op: Op = Op.SUM,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Combine all tensors on every rank, in place."""
        function = find_algorithm("all_reduce", algorithm)
        call = f"all_reduce({describe(tensor)}, {op})"
        return self._run(
            call,
            lambda: in_place(tensor, lambda t: function(self.channel, t, op)),
            algorithm,
            async_op,
        )

    def scatter(
        self,
        out: Tensor,
        parts: Sequence[Tensor] | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Give rank k the root's k-th part; only the root has parts."""
        function = find_algorithm("scatter", algorithm)
        self._check_parts(parts, like=out, wanted=self.rank == root, what="scatter")

        def work() -> None:
            source = None if parts is None else join(parts)
            in_place(out, lambda t: function(self.channel, t, source, root))

        return self._run(
            f"scatter({describe(out)}, root {self._root(root)})", work, algorithm, async_op
        )

    def gather(
        self,
        tensor: Tensor,
        parts: Sequence[Tensor] | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Collect every rank's tensor in the root's parts; only the root has parts."""
        function = find_algorithm("gather", algorithm)
        self._check_parts(parts, like=tensor, wanted=self.rank == root, what="gather")

        def work() -> None:
            target = None if parts is None else make_room(parts)
            function(self.channel, flatten(tensor), target, root)
            if parts is not None and target is not None:
                deal(target, parts)

        return self._run(
            f"gather({describe(tensor)}, root {self._root(root)})", work, algorithm, async_op
        )

    def all_gather(
        self,
        parts: Sequence[Tensor],
        tensor: Tensor,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Collect every rank's tensor in `parts`, on every rank."""
        function = find_algorithm("all_gather", algorithm)
        self._check_parts(parts, like=tensor, wanted=True, what="all_gather")

        def work() -> None:
            pieces = Pieces.even(make_room(parts), self.size)
            pieces[self.rank].copy_(flatten(tensor))
            function(self.channel, pieces)
            deal(pieces.flat, parts)

        return self._run(f"all_gather({describe(tensor)})", work, algorithm, async_op)

    def reduce_scatter(
        self,
        out: Tensor,
        parts: Sequence[Tensor],
        op: Op = Op.SUM,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Combine everybody's part k at rank k."""
        function = find_algorithm("reduce_scatter", algorithm)
        self._check_parts(parts, like=out, wanted=True, what="reduce_scatter")

        def work() -> None:
            pieces = Pieces.even(join(parts), self.size)
            function(self.channel, pieces, op)
            out.detach().copy_(pieces[self.rank].view(out.shape))

        return self._run(f"reduce_scatter({describe(out)}, {op})", work, algorithm, async_op)

    def all_to_all(
        self,
        received: Sequence[Tensor],
        sent: Sequence[Tensor],
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Send part k to rank k, and collect what the others have for this rank."""
        function = find_algorithm("all_to_all", algorithm)
        self._check_parts(sent, like=sent[0], wanted=True, what="all_to_all")
        self._check_parts(received, like=sent[0], wanted=True, what="all_to_all")

        def work() -> None:
            target = Pieces.even(make_room(received), self.size)
            function(self.channel, target, Pieces.even(join(sent), self.size))
            deal(target.flat, received)

        return self._run(f"all_to_all({describe(sent[0])})", work, algorithm, async_op)

    def barrier(self, *, algorithm: str | None = None, async_op: bool = False) -> Handle | None:
        """Wait until every rank has called this."""
        function = find_algorithm("barrier", algorithm)
        return self._run("barrier()", lambda: function(self.channel), algorithm, async_op)

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise UsageError(f"root is {root}, but ranks go from 0 to {self.size - 1}")
        return root

    def _check_parts(
        self, parts: Sequence[Tensor] | None, *, like: Tensor, wanted: bool, what: str
    ) -> None:
        if (parts is None) == wanted:
            must = "must give" if wanted else "is not the root and must not give"
            raise UsageError(f"{what}: rank {self.rank} {must} the parts of all ranks")
        if parts is None:
            return
        if len(parts) != self.size:
            raise UsageError(f"{what}: got {len(parts)} parts for {self.size} ranks; give one each")
        odd = [part for part in parts if (part.shape, part.dtype) != (like.shape, like.dtype)]
        if odd:
            raise UsageError(
                f"{what}: all parts must be {describe(like)}, but one is {describe(odd[0])}"
            )

    def _run(
        self, call: str, work: Callable[[], None], algorithm: str | None, async_op: bool
    ) -> Handle | None:
        """Do the work here, or behind whatever is still under way."""
        named = f"{call} by {algorithm or DEFAULTS[call.partition('(')[0]]}"

        def agreed() -> None:
            if self._agreement is not None:
                self._agreement.check(named)
            work()

        if not async_op and not self._stream.started:
            agreed()
            return None
        handle = Pending(self._stream.submit(agreed))
        if not async_op:
            handle.wait()
        return handle if async_op else None


class Pending:
    """An asynchronous call."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        """Block until it is done; raises what went wrong."""
        self._future.result()
