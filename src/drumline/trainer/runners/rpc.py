"""`RpcRunner`: the model's parts on all ranks, and one rank that calls them.

The leader's calls do all of a step: forward, backward, the optimizers of all parts. The other ranks
serve these calls on a thread of RPC's, and wait with everybody else for what the step came to:

    leader   calls … calls … step done ──► broadcast of the loss ──► next step
    others   (serve calls)                 wait for it               next step

So every rank goes through the same loop, writes its events, and saves its own part.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.optim import Optimizer

from drumline.comm.meter import Meter, Span
from drumline.data.splits import Inputs
from drumline.optim import build_optimizer
from drumline.parallel.rpc.agents import RpcAgents, here, join_rpc
from drumline.parallel.rpc.leader import RpcModel
from drumline.parallel.rpc.parts import Part
from drumline.parallel.shard_spec import describe_shard
from drumline.trainer.divergence import check_loss
from drumline.trainer.runners.base import Loss, ModelRunner, StepInputs, TrainContext, only_input
from drumline.trainer.runners.cuts import build_parts, plan_cuts

_CALL = "call"


def _find_optimizer(_: list[nn.Parameter]) -> Optimizer:
    """Return the optimizer of this process's part; called by `DistributedOptimizer`."""
    assert here.optimizer is not None
    return here.optimizer


def note_calls(meter: Meter, part: int, parts: int, began: int, sent: int) -> None:
    """Turn the work that calls brought to an RPC runner's part into messages, for the ledger.

    A part is idle from the end of one piece of work to the beginning of the next, which a call from
    another part begins: the part before it in forward, the one behind it in backward. The last part
    gets its gradients from the leader, whose time of sending nobody notes. The bytes that this
    rank has `sent` since the step `began` are shared out evenly over its calls.
    """
    idle_since = began
    came, went = [], []
    for kind, microbatch, _, since, until in sorted(meter.work, key=lambda work: work[3]):
        ahead = kind == "forward"
        source, target = (part - 1, part + 1) if ahead else (part + 1, part - 1)
        if 0 <= source < parts:
            span = Span(_CALL, 0, min(idle_since, since), since, (source, part))
            came.append((microbatch, span))
            if since > idle_since:
                meter.blocked.append([idle_since, since])
        if 0 <= target < parts:
            went.append((microbatch, Span(_CALL, 0, until, until, (part, target))))
        idle_since = max(idle_since, until)
    # threads may take the microbatches in another order on each side: both tell them by number
    meter.spans += [span for _, span in sorted(came)]
    for number, (_, span) in enumerate(sorted(went)):
        share = sent * (number + 1) // len(went) - sent * number // len(went)
        meter.spans.append(span._replace(nbytes=share))


@dataclass(frozen=True, kw_only=True)
class RpcRunner(ModelRunner):
    """A `ModelRunner` of one part, driven from rank 0."""

    agents: RpcAgents
    part: Part
    leader: RpcModel | None
    """only rank 0 has it"""

    def forward_backward(self, step: StepInputs) -> Loss:
        """Take the step on the leader; wait for it on the others."""
        parts = self.context.axes.mesh.size
        if parts > 1:
            with self.agents.listening():
                dist.barrier()  # all begin together: what a rank notes from here on is of this step
        began = time.monotonic_ns()
        told = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        if self.leader is not None:
            told.copy_(torch.tensor(self._lead(self.leader, step), dtype=told.dtype))
        else:
            step.clock.data_ready()
            time.sleep(self.context.delay_s)
        if parts > 1:
            with self.agents.listening():
                dist.broadcast(told, src=0)
        traffic = self.part.take_traffic() if self.leader is None else self.leader.take_traffic()
        note_calls(self.context.meter, self.context.rank.rank, parts, began, traffic.nbytes)
        total, predictions = told.tolist()
        return Loss(total=total, predictions=round(predictions))

    def update(self, step: StepInputs) -> None:
        """Nothing to do: the leader's step has moved all parts."""

    def predict(self, inputs: Inputs) -> Tensor | None:
        """Return the scores on the leader; the others serve."""
        if self.leader is None:
            return None
        return self.leader.predict(only_input(inputs)).to(self.context.device)

    def close(self) -> None:
        """Leave RPC, all ranks together."""
        self.agents.leave()

    def _lead(self, leader: RpcModel, step: StepInputs) -> tuple[float, int]:
        fetched = (batch for _, batch in step.batch.fetch())
        microbatches = [(only_input(inputs), targets) for inputs, targets in fetched]
        step.clock.data_ready()
        count = self.context.loss.count
        predictions = sum(count(targets) for _, targets in microbatches)
        time.sleep(self.context.delay_s)
        seed = (self.context.spec.seed * 1_000_003 + step.number) % 2**31

        def checked(logits: Tensor, targets: Tensor) -> Tensor:
            summed: Tensor = self.context.loss.summed(logits.to(self.context.device), targets)
            check_loss(summed.item() / max(1, count(targets)), self, step, None)
            return summed

        losses = leader.train(microbatches, checked, 1 / max(1, predictions), seed=seed)
        return sum(losses), predictions


def build_rpc_runner(context: TrainContext, outline: nn.Module) -> RpcRunner:
    """Build the RPC runner: cut the model, take this rank's part; every rank calls this."""
    spec, rank = context.spec, context.rank
    agents = join_rpc(
        _get_default_store(),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout_s=spec.timeout_s,
        leader=context.leader,
    )
    cuts = plan_cuts(context, outline, rank.world_size)
    (module,) = build_parts(context, cuts, [rank.rank])
    part = Part(module, number=rank.rank, device=context.device, note=context.meter.note_work)
    here.optimizer = build_optimizer(spec.optimizer, part.trained().items())
    leader = None
    if rank.leads:
        leader = RpcModel(
            agents,
            part,
            optimizer=_find_optimizer,
            clip_norm=spec.clip_norm,
            tied=cuts.tied_apart,
            overlap=spec.microbatches > 1,
        )
    else:
        agents.offer(part)
    return RpcRunner(
        context=context,
        model=module,
        agents=agents,
        part=part,
        leader=leader,
        counts=rank.leads,  # the leader has the loss
        optimizer=here.optimizer,
        shard=describe_shard(
            module, context.axes, tied=cuts.tied, parts=rank.world_size, part=rank.rank
        ),
        cuts=cuts.describe(),
    )
