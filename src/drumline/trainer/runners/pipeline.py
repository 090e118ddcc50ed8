"""`PipelineRunner`: this rank holds a stage of the model, and microbatches pass through all ranks.

    1. data       the same samples on every stage, cut into microbatches
    2. pipeline   forward and backward of all microbatches, by the engine's schedule
    3. gradients  averaged over copies of the stage; tied parameters added up over stages
    4. loss       from the last stage, which has it, to the others, which report it too

Of the samples (1) the first stage needs the inputs, the last one the targets, and all the shapes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.comm import Channel, members_of
from drumline.data.splits import Inputs
from drumline.optim import build_optimizer
from drumline.parallel.batch_norm import frozen_batch_norm
from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor
from drumline.parallel.shard_spec import describe_shard
from drumline.parallel.split.balance import SumLoss
from drumline.parallel.split.stage import Chunks
from drumline.parallel.strategy import Strategy
from drumline.parallel.tied import TiedGradients
from drumline.trainer.divergence import check_loss
from drumline.trainer.runners.base import (
    Loss,
    ModelRunner,
    StepInputs,
    TrainContext,
    channels_last,
    only_input,
)
from drumline.trainer.runners.cuts import build_parts, plan_cuts


@dataclass(frozen=True, kw_only=True)
class PipelineRunner(ModelRunner):
    """Pipeline parallelism: a `ModelRunner` of one stage."""

    engine: Executor | TorchEngine
    loss: SumLoss
    strategy: Strategy
    tied: TiedGradients

    def forward_backward(self, step: StepInputs) -> Loss:
        """Run all microbatches through the pipeline."""
        self.optimizer.zero_grad()
        indices, total = step.batch.indices, step.batch.total
        counts = len(indices) > 0  # a copy without samples stays in step, and counts 0
        fetched = (batch for _, batch in step.batch.fetch())
        microbatches = [(only_input(inputs), targets) for inputs, targets in fetched]  # (1)
        step.clock.data_ready()
        predictions = sum(self.context.loss.count(targets) for _, targets in microbatches)
        of_all = total * predictions / max(1, len(indices))
        if self.context.counts_vary:
            of_all = self.context.count_all(counts * predictions)
        if self.context.delay_s:
            time.sleep(self.context.delay_s)
        scale = counts * self.context.axes.mesh.data / of_all
        with frozen_batch_norm(self.model, when=not counts):
            losses = self.engine.train(microbatches, self.loss, scale)  # (2)
        began = time.monotonic_ns()
        self.strategy.finish()  # (3)
        self.tied.add_up()
        summed = self._broadcast_loss(sum(losses), predictions, step)  # (4)
        step.clock.blocked_since(began)
        return Loss(total=counts * summed, predictions=counts * predictions)

    def update(self, step: StepInputs) -> None:
        """Clip by the norm of the whole model, and step."""
        if self.context.spec.clip_norm is not None:
            began = time.monotonic_ns()
            self.clip_gradients()
            step.clock.blocked_since(began)
        self.optimizer.step()

    def predict(self, inputs: Inputs) -> Tensor | None:
        """Return the scores, on the rank that has them and counts them."""
        logits = self.engine.predict(only_input(inputs))
        return logits if self.counts else None

    def _broadcast_loss(self, summed: float, predictions: int, step: StepInputs) -> float:
        """Give every stage the last one's loss, once it is known to be neither NaN nor infinite."""
        axes = self.context.axes
        last = axes.mesh.pipeline - 1
        if axes.stage == last:
            check_loss(summed / max(1, predictions), self, step, None)
        if axes.pipeline is None:
            return summed
        total = torch.tensor(summed, dtype=torch.float64, device=self.context.device)
        arrived = time.monotonic_ns()
        dist.broadcast(total, group=axes.pipeline, group_src=last)
        found = float(total)  # a GPU has only queued the broadcast until here
        # where stages whose backwards end first wait for the others; one number is no traffic
        self.context.meter.record("loss", 0, arrived, members_of(axes.pipeline))
        return found


def build_pipeline_runner(context: TrainContext, outline: nn.Module) -> PipelineRunner:
    """Build the pipeline's runner: cut the model, take this rank's stage; every rank calls this."""
    spec, axes = context.spec, context.axes
    stages = axes.mesh.pipeline
    per_rank = spec.strategy.chunks or 2 if spec.strategy.schedule == "interleaved" else 1
    cuts = plan_cuts(context, outline, stages * per_rank)
    numbers = [axes.stage + chunk * stages for chunk in range(per_rank)]
    chunks = build_parts(context, cuts, numbers)
    if spec.strategy.engine == "drumline":  # PyTorch's engine sends contiguous tensors only
        chunks = [channels_last(chunk) for chunk in chunks]
    model = chunks[0] if per_rank == 1 else Chunks(chunks)
    loss: SumLoss = context.loss.summed
    if spec.precision == "bf16":  # around forward alone: not around backward
        autocast = context.autocast()
        loss = autocast(loss)
        for chunk in chunks:
            chunk.forward = autocast(chunk.forward)
    strategy = context.strategy(model)
    return PipelineRunner(
        context=context,
        model=model,
        engine=_build_engine(context, chunks, strategy),
        loss=loss,
        strategy=strategy,
        tied=TiedGradients(
            model,
            cuts.tied,
            {name: part % stages for name, part in cuts.part_of.items()},
            axes,
            timeout_s=spec.timeout_s,
            meter=context.meter,
        ),
        optimizer=build_optimizer(spec.optimizer, model.named_parameters()),
        shard=describe_shard(model, axes, tied=cuts.tied, parts=stages, part=axes.stage),
        counts=axes.counts,
        cuts=cuts.describe(),
    )


def _build_engine(
    context: TrainContext, chunks: list[nn.Module], strategy: Strategy
) -> Executor | TorchEngine:
    options, axes = context.spec.strategy, context.axes
    schedule = options.schedule or "1f1b"
    if options.engine == "torch":
        stages = axes.pipeline or dist.group.WORLD
        assert stages is not None
        return TorchEngine(
            chunks,
            group=stages,
            device=context.device,
            schedule=schedule,
            recompute=options.recompute,
            no_sync=strategy.no_sync,
        )
    group = None
    if dist.get_backend() == "nccl":  # plain messages go through host memory
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=context.spec.timeout_s))
    members = axes.mesh.group_of("pipeline", context.rank.rank)
    return Executor(
        chunks,
        channel=Channel(group, members),
        schedule=schedule,
        recompute=options.recompute,
        note=context.meter.note_work,
        no_sync=strategy.no_sync,
        meter=context.meter,
    )
