"""`RpcModel`: a model in parts, each on a rank of its own, driven by rank 0.

    with join_rpc(store, rank=rank, world_size=2, timeout_s=30) as agents:
        if rank > 0:
            agents.serve(Part(second_half, number=1))
        else:
            part = Part(first_half, number=0)
            model = RpcModel(agents, part, optimizer=partial(build_optimizer, spec))
            losses = model.train(microbatches, loss_sum, scale=1 / predictions)

One step:

    1. begin      every owner forgets its last gradients
    2. forward    microbatches leave one after the other; the parts pass them on (see `parts`)
    3. loss       on the leader, from the logits that come back
    4. backward   one call; distributed autograd follows the calls back, over all ranks
    5. tied, clip where asked for: gradients change in place
    6. update     every owner steps its own optimizer

With one microbatch one rank works at a time. With several they overlap, in (2) and again in (4):

    1 microbatch    rank 0  F F F F . . . . . . . . B B B B
                    rank 1  . . . . F F F F B B B B . . . .
    4 microbatches  rank 0  F F F F . . B B B B
                    rank 1  . F F F F B B B B .

Tied parameters (an embedding that is also the last layer's weight) have a copy in each part that
uses them; their gradients are added up by the leader, so that all copies take the same step:

    part 0   embedding.weight   ∂ of its use ─┐                ┌─► the sum
    part 2   head.weight        ∂ of its use ─┴─► leader adds ─┴─► the sum
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import sqrt
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.futures import Future
from torch.optim import Optimizer

from drumline.comm.channel import wait_all
from drumline.core.errors import UsageError
from drumline.parallel.rpc.agents import RpcAgents
from drumline.parallel.rpc.parts import Inbox, Part, Pass, Traffic, ask, hand_on
from drumline.parallel.split.balance import Microbatch, SumLoss

BuildOptimizer = Callable[[list[torch.nn.Parameter]], Optimizer]


class RpcModel:
    """The parts of a model behind RRefs; only the leader has it."""

    def __init__(
        self,
        agents: RpcAgents,
        own: Part,
        *,
        optimizer: BuildOptimizer,
        clip_norm: float | None = None,
        tied: Sequence[tuple[str, ...]] = (),
        overlap: bool = True,
    ) -> None:
        """Take hold of all parts; blocks until every other rank serves its own.

        A second model takes the parts over: the first must not be used any more.

        Args:
            agents: of all ranks.
            own: part 0.
            optimizer: makes a part's optimizer from its parameters; sent to the owners, so it must
                be a function of a module, or a `functools.partial` of one.
            clip_norm: the norm of all parts' gradients together that a step may have at most.
            tied: names of parameters that are copies of one; their gradients are added up.
            overlap: let microbatches follow each other at once; else each waits for the one before.
        """
        from torch.distributed.optim import DistributedOptimizer

        self._agents = agents
        self._own = own
        self._clip_norm = clip_norm
        self.overlap = overlap
        """may be changed between steps"""
        self._inbox = Inbox()
        self.parts = agents.collect(own)
        """RRefs to the parts, by rank"""
        with agents.watching():
            for part, following in zip(
                self.parts, [*self.parts[1:], rpc.RRef(self._inbox)], strict=True
            ):
                ask(part, Part.link, following).wait()
            self.names: list[list[str]] = [ask(part, Part.names).wait() for part in self.parts]
            """of the parameters that each part trains, in the order of its optimizer's state"""
            self._ties = [_find_tie(self.parts, self.names, copies) for copies in tied]
            refs = [ref for part in self.parts for ref in ask(part, Part.parameter_refs).wait()]
            with _quiet():
                # a class of torch.optim would be exchanged for its TorchScript form: wrapped, not
                self._optimizers = DistributedOptimizer(partial(optimizer), refs)

    def train(
        self,
        microbatches: Sequence[Microbatch],
        loss: SumLoss,
        scale: float,
        *,
        seed: int | None = None,
    ) -> list[float]:
        """Take one step, and return the loss of each microbatch, not scaled.

        Args:
            microbatches: inputs and targets; their gradients add up.
            loss: sums over predictions. Runs on the leader before backward: what it raises ends the
                step with all weights as they were.
            scale: what gradients are multiplied by: 1 ÷ the predictions of all microbatches.
            seed: of this step's random numbers, such as dropout's; None: they just go on.
        """
        if not microbatches:
            raise UsageError("a step needs at least one microbatch, got none")
        with self._agents.watching(), dist_autograd.context() as context:
            begun = [ask(ref, _begin) for ref in self._optimizers.remote_optimizers]  # (1)
            seeds = [
                None if seed is None else seed * 1_000_003 + number
                for number in range(len(microbatches))
            ]
            jobs = [Pass(microbatch=i, training=True, seed=s) for i, s in enumerate(seeds)]
            calls = [
                self._send(job, inputs)  # (2)
                for job, (inputs, _) in zip(jobs, microbatches, strict=True)
            ]
            sums = [
                loss(self._receive(job, call), targets)  # (3)
                for job, call, (_, targets) in zip(jobs, calls, microbatches, strict=True)
            ]
            losses = [summed.item() for summed in sums]
            dist_autograd.backward(context, [summed * scale for summed in sums])  # (4)
            wait_all(begun)
            self._change_gradients(context)  # (5)
            self._optimizers.step(context)  # (6)
        return losses

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch, computed in evaluation mode and without gradients."""
        with self._agents.watching():
            job = Pass(microbatch=0, training=False)
            return self._receive(job, self._send(job, inputs))

    def take_traffic(self) -> Traffic:
        """Return what payload the leader's rank has sent since this was last called."""
        found = self._own.take_traffic()
        logits, self._inbox.traffic = self._inbox.traffic, Traffic()
        found.gradient_bytes += logits.gradient_bytes
        return found

    def _send(self, job: Pass, inputs: Tensor) -> Future[None]:
        """Start a microbatch on its way through the parts; part 0 computes right here."""
        call = hand_on(self.parts[0], job, inputs)
        if not self.overlap:
            call.wait()
        return call

    def _receive(self, job: Pass, call: Future[None]) -> Tensor:
        call.wait()
        return self._inbox.pop(job.microbatch)

    def _change_gradients(self, context: int) -> None:
        if not self._ties and self._clip_norm is None:
            return
        wait_all([ask(part, Part.settle, context) for part in self.parts])
        for tie in self._ties:
            self._inbox.traffic.gradient_bytes += _sum_tied(self.parts, tie)
        if self._clip_norm is not None:
            self._clip(self._clip_norm)

    def _clip(self, most: float) -> None:
        """Scale all gradients together; a tied parameter counts once, as in the whole model."""
        copies: list[list[str]] = [[] for _ in self.parts]
        for tie in self._ties:
            for part, name in tie[1:]:
                copies[part].append(name)
        squares = [
            ask(part, Part.gradient_squares, names)
            for part, names in zip(self.parts, copies, strict=True)
        ]
        norm = sqrt(sum(call.wait() for call in squares))
        wait_all([ask(part, Part.clip_gradients, most, norm) for part in self.parts])


def _begin(local: Any) -> None:
    """Do on an owner what DistributedOptimizer lacks; `local` is torch's _LocalOptimizer."""
    local.optim.zero_grad()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back the advice to use TorchScript, which torch itself has given up."""
    logger = logging.getLogger("torch.distributed.optim.optimizer")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


Tie = list[tuple[int, str]]
"""the parts that hold a copy, each with the name that it has there"""


def _find_tie(parts: Sequence[Any], names: Sequence[Sequence[str]], copies: tuple[str, ...]) -> Tie:
    """Look up which parts hold the parameter of these names, and check that copies are equal."""
    for name in copies:
        if not any(name in held for held in names):
            raise UsageError(
                f"no part trains a parameter {name!r}, which should be tied to others as {copies}; "
                f"give the names that the parts have"
            )
    tie = [(part, name) for part, held in enumerate(names) for name in copies if name in held]
    first, *others = [ask(parts[part], Part.parameter, name).wait() for part, name in tie]
    for (part, name), other in zip(tie[1:], others, strict=True):
        if not torch.equal(first, other):
            raise UsageError(
                f"{name!r} of part {part} is to be tied to {tie[0][1]!r} of part {tie[0][0]}, but "
                f"holds other values; give all parts the same weights first"
            )
    return tie


def _sum_tied(parts: Sequence[Any], tie: Tie) -> int:
    """Give all copies the sum of their gradients, in part order; return the bytes sent for it."""
    calls = [ask(parts[part], Part.gradient, name) for part, name in tie]
    found = [gradient for call in calls if (gradient := call.wait()) is not None]
    if not found:
        return 0
    total = torch.stack(found).sum(0)
    wait_all([ask(parts[part], Part.put_gradient, name, total) for part, name in tie])
    return total.nbytes * sum(part > 0 for part, _ in tie)
