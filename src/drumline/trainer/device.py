"""What a rank computes on: a GPU or the CPU, its threads, its memory.

`_child_survives`: some virtual machines announce AMX tile instructions and then trap on them;
oneDNN trusts the announcement and the process dies of SIGILL. So a child tries one small product in
bf16 first, and where it dies, oneDNN is told to use plain AVX-512.

`_set_malloc`: a training step allocates and frees the same megabytes of activations over and over.
glibc gives large blocks back to the kernel each time and gets them back empty, page by page:
thousands of page faults a step. Told to keep them, it reuses the same pages; the process stays at
its peak size. Kept blocks have gaps between them that nothing fits into, so a process whose memory
is limited gives each large block back instead: it would reach its limit long before it needs that.

`memory_budget`: so that a laptop can show what otherwise takes a large GPU: a model that does not
fit into one worker, and does fit into two with half of it each. The kernel counts what the process
may write to (RLIMIT_DATA: heap, anonymous mappings, stacks of threads), touched or not, and refuses
more; an error says in a sentence what did not fit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
from collections.abc import Iterator
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from drumline.comm.meter import Footprint, process_memory
from drumline.core.errors import UsageError
from drumline.core.formatting import format_bytes
from drumline.core.rundir import EventWriter
from drumline.data import Dataset, build_dataset
from drumline.models import build_outline
from drumline.spec.learning import OptimizerSpec
from drumline.spec.run_spec import RunSpec
from drumline.trainer.rank import RankInfo

_ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 32 * 2**20  # glibc's limit for blocks that come from its own heap
_LARGE = 2**17  # glibc's own, which it raises with each large block that is freed
_NEVER = 2**31 - 1
_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|bad_alloc|MemoryError"
)
_HEADROOM = 1.25  # activations, messages and what torch takes for itself
_MB = 10**6
_JOINING = 24 * _MB  # threads that carry messages; without them the process would abort
_THREAD = 8 * _MB  # its stack, touched or not
_STATES = {"gd": 0, "sgd": 0, "Adafactor": 0, "Adagrad": 1, "ASGD": 1, "Muon": 1, "RMSprop": 1}
"""tensors that an optimizer keeps for each parameter, beside momentum; the others: 2"""
_OWN = 48 * _MB
_OWN_BY_RPC = 144 * _MB  # each rank has threads that serve calls


def prepare_device(spec: RunSpec, rank: RankInfo, events: EventWriter) -> torch.device:
    """Pick the device to train on, and make it ready: a GPU (shared, if there are few), or the CPU.

    To be called before the first product, and before this process has threads.
    """
    has_gpu = torch.cuda.is_available()
    if spec.device == "cuda" and not has_gpu:
        raise UsageError("device: cuda, but PyTorch sees no GPU here; set device=cpu")
    device = torch.device("cpu")
    if spec.device != "cpu" and has_gpu:
        device = torch.device("cuda", rank.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    elif spec.precision == "bf16" and _ISA_VARIABLE not in os.environ and not _child_survives():
        os.environ[_ISA_VARIABLE] = "AVX512_CORE_BF16"
        text = "this CPU traps on AMX instructions that it announces; bf16 uses AVX-512 instead"
        events.write("note", text=text)
    _set_malloc(mmap_threshold=_LARGEST, trim_threshold=_NEVER)
    return device


def _child_survives() -> bool:
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGILL, signal.SIG_DFL)
            tile = torch.ones(64, 64, dtype=torch.bfloat16)
            torch.mm(tile, tile)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL)


def _set_malloc(*, mmap_threshold: int, trim_threshold: int) -> None:
    """Tell the C library how large a freed block it gives back, if it is glibc."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  only glibc has it
        library.mallopt(_M_MMAP_THRESHOLD, mmap_threshold)
        library.mallopt(_M_TRIM_THRESHOLD, trim_threshold)


def limit_memory(nbytes: int) -> None:
    """Limit this training process to so many bytes of memory beyond what it has now."""
    held = process_memory("VmData")
    if held is None:
        raise UsageError(
            "memory_bytes needs Linux, where a process can be limited to some memory; leave it out"
        )
    _set_malloc(mmap_threshold=_LARGE, trim_threshold=_LARGE)
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    if highest not in (resource.RLIM_INFINITY, -1) and held + nbytes > highest:
        raise UsageError(
            f"memory_bytes={nbytes} is more than the {format_bytes(highest - held)} that `ulimit "
            f"-Hd` leaves this process; set memory_bytes={max(highest - held, 0)} or less"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (held + nbytes, highest))


@contextlib.contextmanager
def memory_budget(spec: RunSpec) -> Iterator[list[nn.Module]]:
    """Keep training within the spec's memory in here; running into it is an error in one sentence.

    Yields a list to put in what this rank is to hold (the last entry counts), for the sentence;
    while it is empty, the sentence is about what any rank needs.
    """
    held: list[nn.Module] = []
    limit = spec.memory_bytes
    if limit is None:
        yield held
        return
    limit_memory(limit)
    try:
        yield held
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        if not held:
            raise _explain_beginning(spec, limit) from None
        explained = explain_memory(error, limit=limit, model=held[-1], optimizer=spec.optimizer)
        raise explained or error from None


def check_room(spec: RunSpec) -> None:
    """Raise a MemoryError, while it can still be told, if loading left threads no room."""
    if spec.memory_bytes is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit - (process_memory("VmData") or 0) < _JOINING:
        raise MemoryError


def _explain_beginning(spec: RunSpec, limit: int) -> UsageError:
    """Say how much memory would do, where it was too little even to begin.

    Lifts the limit, and loads the data once more to see what that takes: only for a process that
    is about to end.
    """
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (highest, highest))
    dtype = getattr(torch, spec.dtype)
    footprint = Footprint()
    data = build_dataset(spec.data, seed=spec.seed, dtype=dtype)
    loading = footprint.peak().get("peak_bytes", 0)
    outline = build_outline(spec.model, seed=spec.seed, dtype=dtype, **data.given)
    parts = spec.axes.pipeline * spec.axes.tensor
    model = sum(_shares(outline, spec.optimizer)) // parts
    activations = _activations(outline, data, max(1, spec.data.batch // spec.axes.data)) // parts
    own = _OWN_BY_RPC if spec.strategy.kind == "rpc" else _OWN
    own += _THREAD * torch.get_num_threads()
    needed = loading + model + activations + own
    enough = ceil(max(needed, limit) * _HEADROOM / _MB)
    return UsageError(
        f"this rank may take {format_bytes(limit)} of memory (memory_bytes={limit}), which is too "
        f"little to begin: loading {spec.data.name} takes {format_bytes(loading)}, threads and "
        f"torch itself about {format_bytes(own)}, a rank's part of the model "
        f"{format_bytes(model)} and its activations {format_bytes(activations)}; set "
        f"memory_bytes={enough}MB",
        limit=limit,
        needed=needed,
    )


def explain_memory(
    error: BaseException, *, limit: int, model: nn.Module, optimizer: OptimizerSpec
) -> UsageError | None:
    """Say what of a rank's model, or outline, did not fit into memory; None if that was not it."""
    if not _is_out_of_memory(error):
        return None
    parameters, gradients, state = _shares(model, optimizer)
    total = parameters + gradients + state
    enough = max(2, ceil(total * _HEADROOM / limit))
    return UsageError(
        f"this rank may take {format_bytes(limit)} of memory (memory_bytes={limit}), which is used "
        f"up: parameters take {format_bytes(parameters)}, gradients {format_bytes(gradients)}, "
        f"the state of {optimizer.name} {format_bytes(state)}, together {format_bytes(total)}, and "
        f"activations come on top; split the model (strategy=pipeline workers={enough}), or set "
        f"memory_bytes={ceil(max(total * _HEADROOM, limit * _HEADROOM))}",
        limit=limit,
        needed=total,
    )


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def _shares(model: nn.Module, optimizer: OptimizerSpec) -> tuple[int, int, int]:
    """How many bytes parameters, gradients and the optimizer's state take."""
    parameters = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    kept = _STATES.get(optimizer.name, 2) + (optimizer.momentum > 0)
    return parameters, gradients, gradients * kept


def _activations(outline: nn.Module, data: Dataset, samples: int) -> int:
    """How many bytes forward keeps for backward; 0 where an outline cannot be run."""
    kept: dict[int, Tensor] = {}
    parameters = set(outline.parameters())

    def keep(tensor: Tensor) -> Tensor:
        if tensor not in parameters:
            kept[id(tensor)] = tensor
        return tensor

    inputs, _ = data.train.batch(np.zeros(1, dtype=np.int64))
    if isinstance(inputs, tuple):
        return 0
    shape = (samples, *inputs.shape[1:])
    with (
        contextlib.suppress(Exception),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        outline(torch.empty(shape, dtype=inputs.dtype, device="meta"))
    return sum(tensor.nbytes for tensor in kept.values())
