"""`Communicator`: the collectives as one calls them, each by an algorithm of one's choice.

    comm = Communicator()                              # every rank of the default group
    comm.all_reduce(tensor, "max", algorithm="halving_doubling")   # Op.MAX does, too
    handle = comm.broadcast(tensor, root=2, async_op=True)
    …
    handle.wait()
    evens = comm.among([0, 2])                         # only ranks 0 and 2 call this
    comm.close()                                       # or: with Communicator() as comm

Here tensors get the shape that the algorithms take (flat, in one piece, on the host), calls are
compared between ranks before they can hang, and asynchronous ones are put in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_default_store

from drumline.comm.agreement import TIMEOUT_S, Agreement
from drumline.comm.algorithms import ALGORITHMS, Algorithm
from drumline.comm.channel import Channel, Handle
from drumline.comm.pieces import (
    Pieces,
    check_parts,
    check_tensors,
    copy_to_parts,
    describe,
    empty_for,
    flatten,
    in_place,
    join,
)
from drumline.comm.reduce_op import Op, read_op
from drumline.comm.stream import CommStream, PendingWork
from drumline.core.errors import UsageError
from drumline.schedules.collectives import find_algorithm_name

SMALL = 8
"""groups of up to so many ranks compare their calls unless told otherwise"""


class Communicator(contextlib.AbstractContextManager["Communicator"]):
    """Collectives of a group of ranks; all of them make the same calls in the same order.

    Every call blocks until this rank may use the result, or returns a handle with `wait()` where
    `async_op` is set; the tensors belong to the call until then. Results are in place, or in the
    tensors given for them. Algorithms are those of `drumline.comm.algorithms`, operations those of
    `Op`, by name too. Arguments that cannot be are refused before anything is sent (UsageError).
    `rank` is this rank, counted from 0 among the `size` that take part.
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
        self.rank, self.size = self.channel.rank, self.channel.size
        self._stream = CommStream()
        self._timeout_s = timeout_s
        self._checked = checked
        self._agreement: Agreement | None = None
        if self.size > 1 and (self.size <= SMALL if checked is None else checked):
            store, members = _get_default_store(), self.channel.global_ranks
            self._agreement = Agreement(store, members, self.rank, timeout_s=timeout_s)

    def __exit__(self, *_: object) -> None:
        self.close()

    def among(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of some of these ranks; only they may call this."""
        return Communicator(
            channel=self.channel.among(ranks), checked=self._checked, timeout_s=self._timeout_s
        )

    def broadcast(
        self, tensor: Tensor, root: int = 0, *, algorithm: str | None = None, async_op: bool = False
    ) -> Handle | None:
        """Give every rank the root's tensor, in place."""
        check_tensors("broadcast", tensor)
        what = f"{describe(tensor)}, root {self._root(root)}"

        def work(run: Algorithm) -> None:
            in_place(tensor, lambda flat: run(self.channel, flat, root))

        return self._call("broadcast", what, work, algorithm, async_op)

    def reduce(
        self,
        tensor: Tensor,
        op: Op | str = Op.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Combine all tensors at the root, in place there; the other ranks keep theirs."""
        check_tensors("reduce", tensor)
        how = read_op("reduce", op, tensor.dtype)
        what = f"{describe(tensor)}, {how}, root {self._root(root)}"

        def work(run: Algorithm) -> None:
            in_place(tensor, lambda flat: run(self.channel, flat, root, how))

        return self._call("reduce", what, work, algorithm, async_op)

    def all_reduce(
        self,
        tensor: Tensor,
        op: Op | str = Op.SUM,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Combine all tensors on every rank, in place."""
        check_tensors("all_reduce", tensor)
        how = read_op("all_reduce", op, tensor.dtype)

        def work(run: Algorithm) -> None:
            in_place(tensor, lambda flat: run(self.channel, flat, how))

        return self._call("all_reduce", f"{describe(tensor)}, {how}", work, algorithm, async_op)

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
        check_tensors("scatter", out)
        what = f"{describe(out)}, root {self._root(root)}"
        self._root_has(parts, root, "scatter", like=out)

        def work(run: Algorithm) -> None:
            source = None if parts is None else join(parts)
            in_place(out, lambda flat: run(self.channel, flat, source, root))

        return self._call("scatter", what, work, algorithm, async_op)

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
        check_tensors("gather", tensor)
        what = f"{describe(tensor)}, root {self._root(root)}"
        self._root_has(parts, root, "gather", like=tensor)

        def work(run: Algorithm) -> None:
            target = None if parts is None else empty_for(parts)
            run(self.channel, flatten(tensor), target, root)
            if parts is not None and target is not None:
                copy_to_parts(target, parts)

        return self._call("gather", what, work, algorithm, async_op)

    def all_gather(
        self,
        parts: Sequence[Tensor],
        tensor: Tensor,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Collect every rank's tensor in `parts`, on every rank."""
        check_tensors("all_gather", tensor)
        check_parts("all_gather", parts, self.size, like=tensor)

        def work(run: Algorithm) -> None:
            pieces = Pieces.even(empty_for(parts), self.size)
            pieces[self.rank].copy_(flatten(tensor))
            run(self.channel, pieces)
            copy_to_parts(pieces.flat, parts)

        return self._call("all_gather", describe(tensor), work, algorithm, async_op)

    def reduce_scatter(
        self,
        out: Tensor,
        parts: Sequence[Tensor],
        op: Op | str = Op.SUM,
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Combine everybody's part k at rank k."""
        check_tensors("reduce_scatter", out)
        check_parts("reduce_scatter", parts, self.size, like=out)
        how = read_op("reduce_scatter", op, out.dtype)

        def work(run: Algorithm) -> None:
            pieces = Pieces.even(join(parts), self.size)
            run(self.channel, pieces, how)
            out.detach().copy_(pieces[self.rank].view(out.shape))

        return self._call("reduce_scatter", f"{describe(out)}, {how}", work, algorithm, async_op)

    def all_to_all(
        self,
        received: Sequence[Tensor],
        sent: Sequence[Tensor],
        *,
        algorithm: str | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Send part k to rank k, and collect what the others have for this rank."""
        check_parts("all_to_all", sent, self.size)
        check_parts("all_to_all", received, self.size, like=sent[0])

        def work(run: Algorithm) -> None:
            target = Pieces.even(empty_for(received), self.size)
            run(self.channel, target, Pieces.even(join(sent), self.size))
            copy_to_parts(target.flat, received)

        return self._call("all_to_all", describe(sent[0]), work, algorithm, async_op)

    def barrier(self, *, algorithm: str | None = None, async_op: bool = False) -> Handle | None:
        """Wait until every rank has called this."""
        return self._call("barrier", "", lambda run: run(self.channel), algorithm, async_op)

    def close(self) -> None:
        """Let what is under way end; the group itself stays."""
        self._stream.close()

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise UsageError(f"root is {root}, but ranks go from 0 to {self.size - 1}")
        return root

    def _root_has(
        self, parts: Sequence[Tensor] | None, root: int, collective: str, *, like: Tensor
    ) -> None:
        """Check that the root gives parts, one for each rank, and nobody else."""
        wanted = self.rank == root
        if (parts is None) == wanted:
            must = "must give" if wanted else "is not the root and must not give"
            raise UsageError(f"{collective}: rank {self.rank} {must} the parts of all ranks")
        if parts is not None:
            check_parts(collective, parts, self.size, like)

    def _call(
        self,
        collective: str,
        what: str,
        work: Callable[[Algorithm], None],
        algorithm: str | None,
        async_op: bool,
    ) -> Handle | None:
        """Do the work here, or behind whatever is still under way."""
        name = find_algorithm_name(collective, algorithm)

        def agreed() -> None:
            if self._agreement is not None:
                self._agreement.check(f"{collective}({what}) by {name}")
            work(ALGORITHMS[collective][name])

        if not async_op and not self._stream.started:
            agreed()
            return None
        handle = PendingWork(self._stream.submit(agreed), [])
        if not async_op:
            handle.wait()
        return handle if async_op else None
