"""A point-to-point link: what travels one way through the pipeline, activations or gradients.

    stage 0 ── activations ──> stage 1 ── activations ──> stage 2
    stage 0 <── gradients ──── stage 1 <── gradients ──── stage 2

Each way has a channel of its own: where a rank's neighbours on both sides are the same one, a
gradient could be taken for an activation otherwise. Within a link both sides go by their schedules,
in which the sends of one side and the receives of the other come in the same order.

(1) A receiver must know shape and dtype before the tensor comes. Both follow from the shape of the
    microbatch's input, which every rank knows: so the sender tells them once for each such shape,
    in a header, and both sides remember.
(2) gloo moves a tensor only when its receive is posted. The next ones are, while the stage computes
    on an earlier one.
(3) Sends go on behind the stage's back. A link with `window` of them waits for the oldest before
    the next: with stages × chunks that cannot block for good (the tests of the schedules go through
    it), and what was sent does not pile up in memory.

gloo moves host memory, so tensors of a GPU are copied through pinned memory on both sides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from drumline.comm import Channel, Meter
from drumline.comm.channel import Handle, wait_all
from drumline.core.errors import CommError, UsageError

_AHEAD = 2
_MOST_DIMS = 8
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class TensorMeta(NamedTuple):
    """What a receiver must know of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorMeta:
        """Read a tensor's form."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


class P2PLink:
    """One rank's end of a link: it sends to one neighbour, and receives from the other."""

    def __init__(
        self,
        channel: Channel,
        *,
        to: int,
        source: int,
        window: int,
        device: torch.device,
        meter: Meter | None = None,
    ) -> None:
        self._channel = channel
        self._to, self._source = to, source
        names = channel.global_ranks
        self._outward = names[channel.rank], names[to]
        self._inward = names[source], names[channel.rank]
        self._meter = meter
        self._window = window
        self._device = device
        self._sent_meta: dict[Hashable, TensorMeta] = {}
        self._known: dict[Hashable, TensorMeta] = {}
        self._coming: deque[Hashable] = deque()
        self._posted: deque[tuple[Tensor, Handle]] = deque()
        self._sent: deque[tuple[Handle, ...]] = deque()
        self._loops = to == channel.rank  # both neighbours are this rank itself
        self._looped: deque[Tensor] = deque()

    def expect(self, topics: Iterable[Hashable]) -> None:
        """Say what will come, in order; a topic stands for all tensors that have one form."""
        self._coming = deque(topics)
        self._post()

    def know(self, topic: Hashable, form: TensorMeta) -> None:
        """Say what form a topic has, where this rank knows before anybody tells it."""
        self._known[topic] = form

    def send(self, tensor: Tensor, topic: Hashable = None) -> None:
        """Start sending a tensor; it must stay as it is. None: the receiver knows its form."""
        if self._loops:
            self._looped.append(tensor)
            return
        began = time.monotonic_ns()
        header = [] if topic is None else self._send_header(topic, TensorMeta.of(tensor))
        self._sent.append((*header, self._channel.isend(_on_host(tensor), self._to)))
        if len(self._sent) > self._window:  # (3)
            wait_all(self._sent.popleft())
        if self._meter is not None:
            self._meter.record("send", tensor.nbytes, began, self._outward)

    def receive(self) -> Tensor:
        """Block until the next expected tensor is here."""
        if self._loops:
            return self._looped.popleft()
        began = time.monotonic_ns()
        self._post()
        if not self._posted:  # (1)
            header = torch.empty(2 + _MOST_DIMS, dtype=torch.int64)
            self._channel.recv(header, self._source)
            self._known[self._coming[0]] = _read_header(header)
            self._post()
        tensor, handle = self._posted.popleft()
        handle.wait()
        if self._meter is not None:
            self._meter.record("receive", tensor.nbytes, began, self._inward, blocks=True)
        self._post()
        return tensor.to(self._device, non_blocking=True)

    def finish(self) -> None:
        """Block until everything that was sent has been taken."""
        while self._sent:
            wait_all(self._sent.popleft())

    def _send_header(self, topic: Hashable, form: TensorMeta) -> list[Handle]:
        """Send a header ahead of the first tensor of a topic (1)."""
        if topic not in self._sent_meta:
            self._sent_meta[topic] = form
            return [self._channel.isend(_write_header(form), self._to)]
        if (told := self._sent_meta[topic]) != form:
            raise UsageError(
                f"a pipeline stage gave {form} where it gave {told} for an input of the same "
                f"shape; its output's shape and dtype may depend on those of the input only"
            )
        return []

    def _post(self) -> None:
        """Post the next receives, as far as their form is known (2)."""
        while self._coming and len(self._posted) < _AHEAD:
            form = self._known.get(self._coming[0])
            if form is None or self._loops:
                return
            self._coming.popleft()
            on_gpu = self._device.type == "cuda"
            buffer = torch.empty(form.shape, dtype=form.dtype, pin_memory=on_gpu)
            self._posted.append((buffer, self._channel.irecv(buffer, self._source)))


def _on_host(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous()
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


def _write_header(form: TensorMeta) -> Tensor:
    if form.dtype not in _DTYPES or len(form.shape) > _MOST_DIMS:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise UsageError(
            f"a pipeline stage gave {form}, but stages pass on tensors of {names} with at most "
            f"{_MOST_DIMS} dimensions; cut the model behind a layer that gives such a tensor"
        )
    rest = [0] * (_MOST_DIMS - len(form.shape))
    return torch.tensor([_DTYPES.index(form.dtype), len(form.shape), *form.shape, *rest])


def _read_header(header: Tensor) -> TensorMeta:
    dtype, dims, *shape = header.tolist()
    if not (0 <= dtype < len(_DTYPES) and 0 <= dims <= _MOST_DIMS):
        raise CommError(
            f"the stage before sent {header.tolist()} where a header with dtype, dimensions and "
            f"shape was due; all ranks must run the same schedule with the same microbatches"
        )
    return TensorMeta(tuple(shape[:dims]), _DTYPES[dtype])
