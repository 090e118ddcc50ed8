"""`Part`: what lives on a rank. It takes a tensor, computes, and hands the result on.

The leader does not carry activations from part to part; each part calls the next one, and the last
one calls the leader's `Inbox`. With three parts, and the microbatches a, b:

    rank 0   part 0 ──(1)──► rank 1   part 1 ──(2)──► rank 2   part 2
             inbox  ◄────────────────(3)──────────────────────┘

    rank 0   a b . . . .      (1) `hand_on` calls the next part with the activation, and does not
    rank 1   . a b . . .          wait: the part is free for b while a is under way
    rank 2   . . a b . .      (2) what it returns is a future, which ends as the call of the next
    inbox    . . . a b .          part ends; so an error comes back along the chain
                              (3) the inbox keeps the logits until the leader asks for them

Each call with a tensor that needs a gradient leaves a pair of nodes in distributed autograd's
context, one where it is sent and one where it is received; backward goes the same way back.

When a part computed is recorded by its owner, for the trace. Forward is a call. Backward is run by
autograd's own threads when gradients arrive, so hooks on the nodes of its graph record it:

    Recv ◄── node ◄── node ◄── node ◄── outputs      1. before the first node: backward begins
               ▼        ▼                            2. after a node that leads out of the graph,
             weight   weight                            to a weight or to the part before
                                                     3. the last of those ends it
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.futures import Future

from drumline.comm.meter import NoteWork
from drumline.parallel.shard_spec import sum_squares

P = ParamSpec("P")
T = TypeVar("T")
_CHUNK = 0  # a rank has one part, so one chunk of the model


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What travels with a microbatch."""

    microbatch: int
    training: bool
    seed: int | None = None
    """of this microbatch; each part draws numbers of its own from it"""


@dataclass(kw_only=True)
class Traffic:
    """Payload that a rank has sent to train: bytes of tensors, without RPC's envelopes."""

    activation_bytes: int = 0
    gradient_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Both together."""
        return self.activation_bytes + self.gradient_bytes


class Receiver(Protocol):
    """What tensors are handed on to."""

    traffic: Traffic

    def take(self, job: Pass, tensor: Tensor) -> Future[None]:
        """Use the tensor; the future ends when all that follows has ended."""


class Part:
    """One part of a model, on the rank that owns it; all methods are called by the leader."""

    def __init__(
        self,
        module: nn.Module,
        *,
        number: int,
        device: torch.device | str = "cpu",
        note: NoteWork | None = None,
    ) -> None:
        """Wrap a module that maps one tensor to one; its parameters have the whole model's names.

        `number` is also the rank that owns it. `note` is called there with the span of each forward
        and backward. Between ranks tensors lie in host memory.
        """
        self.module = module.to(device)
        self.number = number
        self.traffic = Traffic()
        self._device = torch.device(device)
        self._note = note
        self._next: Any = None

    def link(self, following: Any) -> None:
        """Set the RRef of what outputs are handed on to."""
        self._next = following

    def take(self, job: Pass, tensor: Tensor) -> Future[None]:
        """Compute, and hand the result on."""
        began = time.monotonic_ns()
        if job.seed is not None:
            torch.manual_seed((job.seed * 1_009 + self.number) % 2**63)
        self.module.train(job.training)
        with torch.set_grad_enabled(job.training):
            outputs = self.module(tensor.to(self._device)).cpu()
        if (note := self._note) is not None:
            note("forward", job.microbatch, _CHUNK, began, time.monotonic_ns())
            _note_backward(outputs, partial(note, "backward", job.microbatch, _CHUNK))
        if job.training and not self._next.is_owner():
            self.traffic.activation_bytes += outputs.nbytes
        return hand_on(self._next, job, outputs)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name, in the order of the optimizer's."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def names(self) -> list[str]:
        """Return the names of the parameters that are trained."""
        return list(self.trained())

    def parameter_refs(self) -> list[Any]:
        """Return an RRef to each parameter that is trained, as DistributedOptimizer wants them."""
        return [rpc.RRef(parameter) for parameter in self.trained().values()]

    def settle(self, context: int) -> None:
        """Bring the gradients of a context to `.grad`, where one can change them in place."""
        for parameter, gradient in dist_autograd.get_gradients(context).items():
            parameter.grad = gradient

    def parameter(self, name: str) -> Tensor:
        """Return a copy of one parameter."""
        return self.trained()[name].detach().cpu().clone()

    def gradient(self, name: str) -> Tensor | None:
        """Return a copy of one parameter's gradient; None where backward has not reached it."""
        found = self.trained()[name].grad
        if found is None:
            return None
        if self.number > 0:  # else it stays on the leader's rank
            self.traffic.gradient_bytes += found.nbytes
        return found.cpu().clone()

    def put_gradient(self, name: str, gradient: Tensor) -> None:
        """Replace the value of one parameter's gradient."""
        parameter = self.trained()[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.copy_(gradient)

    def gradient_squares(self, leave_out: list[str]) -> float:
        """Return the summed squares of all gradients, but for those of some parameters."""
        named = self.trained().items()
        found = [p.grad for name, p in named if p.grad is not None and name not in leave_out]
        return float(sum_squares(found))

    def clip_gradients(self, max_norm: float, norm: float) -> None:
        """Scale all gradients so that those of all parts, whose norm is given, have `max_norm`."""
        total = torch.tensor(norm, dtype=torch.float64)
        nn.utils.clip_grads_with_norm_(self.trained().values(), max_norm, total)

    def take_traffic(self) -> Traffic:
        """Return what was sent since this was last called."""
        found, self.traffic = self.traffic, Traffic()
        return found


class Inbox:
    """Where the last part's results arrive, on the leader."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._found: dict[int, Tensor] = {}

    def take(self, job: Pass, tensor: Tensor) -> Future[None]:
        """Keep a result until the leader asks for it."""
        self._found[job.microbatch] = tensor
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def pop(self, microbatch: int) -> Tensor:
        """Return a result that has arrived."""
        return self._found.pop(microbatch)


def hand_on(target: Any, job: Pass, tensor: Tensor) -> Future[None]:
    """Hand a tensor by RPC to the receiver behind an RRef, and do not wait."""
    if target.is_owner():
        receiver: Receiver = target.local_value()
        return receiver.take(job, tensor)
    call: Future[None] = rpc.rpc_async(target.owner(), _arrive, args=(target, job, tensor))
    return call


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _arrive(target: Any, job: Pass, tensor: Tensor) -> Future[None]:
    receiver: Receiver = target.local_value()
    if tensor.requires_grad:  # backward will send as much as came
        receiver.traffic.gradient_bytes += tensor.nbytes
    return receiver.take(job, tensor)


def ask(
    target: Any, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
) -> Future[T]:
    """Call a method by RPC on the owner of what an RRef points at, and do not wait.

    `ask(part, Part.settle, context)` is `part.rpc_async().settle(context)`, which first asks the
    owner for the type, but checked when it is written.
    """
    call: Future[T] = rpc.rpc_async(target.owner(), _call, (target, method, *args), kwargs)
    return call


def _call(target: Any, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return method(target.local_value(), *args, **kwargs)


_Node = Any
_ENDS = ("AccumulateGrad", "RecvRpcBackward")


def _note_backward(outputs: Tensor, finish: Callable[[int, int], None]) -> None:
    """Call `finish(began_ns, ended_ns)` when backward has passed the graph of `outputs`."""
    if outputs.grad_fn is None:
        return
    edge = _edge(outputs.grad_fn)
    began = ended = 0
    left = len(edge)

    def begin(_: Any) -> None:
        nonlocal began
        began = time.monotonic_ns()  # (1)

    def end(*_: Any) -> None:
        nonlocal ended, left
        ended, left = time.monotonic_ns(), left - 1  # (2)
        if left == 0:
            finish(began, ended)  # (3)

    outputs.grad_fn.register_prehook(begin)
    for node in edge:
        node.register_hook(end)


def _edge(root: _Node) -> list[_Node]:
    """Find the nodes that lead out of the graph."""
    seen, waiting, edge = {root}, [root], []
    while waiting:
        node = waiting.pop()
        following = [after for after, _ in node.next_functions if after is not None]
        inner = [after for after in following if after.name().rsplit("::")[-1] not in _ENDS]
        if len(inner) < len(following):
            edge.append(node)
        for after in inner:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return edge
