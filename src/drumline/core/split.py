"""What the words of a split model must keep together, and what follows where they are silent."""

from __future__ import annotations

from typing import Any

from drumline.core.listing import counted
from drumline.core.mesh import Mesh
from drumline.core.parts import ClashError
from drumline.core.strategy import StrategySpec

_OF_PIPELINES = ("schedule", "chunks", "recompute")
_OF_CUTS = ("microbatches",)
_OF_COPIES = ("average", "bucketed", "bucket_bytes", "compress")


def settle_aggregator(values: Any) -> Any:
    """Average copies of a pipeline by `allreduce` where no strategy is named: DDP cannot."""
    if not isinstance(values, dict) or "mesh" not in values:
        return values
    mesh, strategy = values["mesh"], values.get("strategy", {})
    stages = mesh.get("pipeline") if isinstance(mesh, dict) else None
    if stages in (None, 1) or not isinstance(strategy, dict) or "kind" in strategy:
        return values
    return {**values, "strategy": {**strategy, "kind": "allreduce"}}


def check_split(
    strategy: StrategySpec, mesh: Mesh, *, batch: int, accumulate: int, whole_data: bool, bf16: bool
) -> None:
    """Check that the words of the strategy fit the mesh.

    Raises:
        ClashError: they do not; says what to change.
    """
    if strategy.kind == "rpc":
        _check_rpc(strategy, mesh)
        _refuse_words_of_pipelines(strategy)
    elif mesh.pipeline > 1 and strategy.kind == "ddp":
        raise ClashError(
            "ddp wraps a whole model, not the stages of a pipeline; set strategy: allreduce (or "
            "another that averages) for the data axis",
            *("strategy.kind", "mesh.pipeline"),
        )
    cut = cuts_layers(strategy, mesh)
    if not cut:
        _refuse_words_of_cuts(strategy)
    if cut or mesh.tensor > 1 or strategy.kind == "tensor":
        _check_split_model(strategy)
        if mesh.data == 1:
            _refuse_words_of_copies(strategy)
    if strategy.kind == "rpc" and bf16:
        raise ClashError(
            "rpc computes in full precision; set precision: full, or strategy: pipeline",
            *("precision", "strategy.kind"),
        )
    if cut:
        _check_microbatches(strategy, mesh, batch, accumulate, whole_data)


def cuts_layers(strategy: StrategySpec, mesh: Mesh) -> bool:
    """Whether a rank holds some of the layers only."""
    return strategy.kind in ("pipeline", "rpc") or mesh.pipeline > 1


def microbatches_of(strategy: StrategySpec, mesh: Mesh, batch: int) -> int:
    """Into how many microbatches each copy of the model cuts its share of a batch.

    Unless it is said: by rpc 1, one part at work after the other; else as many as make equal ones,
    up to two for each stage.
    """
    if strategy.microbatches is not None:
        return strategy.microbatches
    share = max(1, batch // mesh.data)
    most = 1 if strategy.kind == "rpc" else 2 * mesh.pipeline
    return max(count for count in range(1, most + 1) if share % count == 0)


def bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return the share of a step in which a stage idles, if all chunks take the same time."""
    return (stages - 1) / (chunks * microbatches + stages - 1)


def _check_rpc(strategy: StrategySpec, mesh: Mesh) -> None:
    if mesh.data > 1 or mesh.tensor > 1:
        raise ClashError(
            "rpc has parts, one on each rank, and no mesh; leave mesh out, or set "
            "strategy: pipeline",
            *("mesh", "strategy.kind"),
        )
    if strategy.parts is not None and strategy.parts != mesh.size:
        raise ClashError(
            f"rpc keeps one part on each rank: {counted(strategy.parts, 'part')}, but "
            f"{counted(mesh.size, 'rank')} will start; set workers={strategy.parts} or "
            f"strategy.parts={mesh.size}",
            *("strategy.parts", "workers", "nodes"),
        )


def _refuse_words_of_cuts(strategy: StrategySpec) -> None:
    given = [word for word in (*_OF_PIPELINES, *_OF_CUTS) if getattr(strategy, word)]
    given += ["balance"] if strategy.balance != "auto" else []
    if given:
        raise ClashError(
            f"{given[0]} belongs to a model that is cut by layers, and {strategy.kind} does not "
            f"cut it; set strategy.kind=pipeline, or leave it out",
            *(f"strategy.{given[0]}", "strategy.kind"),
        )


def _refuse_words_of_pipelines(strategy: StrategySpec) -> None:
    given = [word for word in _OF_PIPELINES if getattr(strategy, word)]
    if given:
        raise ClashError(
            f"{given[0]} belongs to pipelines, and by rpc each part computes when its input "
            f"comes; set strategy.kind=pipeline, or leave it out",
            *(f"strategy.{given[0]}", "strategy.kind"),
        )


def _refuse_words_of_copies(strategy: StrategySpec) -> None:
    usual = StrategySpec(kind=strategy.kind)
    given = [word for word in _OF_COPIES if getattr(strategy, word) != getattr(usual, word)]
    if given:
        raise ClashError(
            f"{given[0]} is about copies of the model, which are averaged, and here is one, split "
            f"over all ranks; leave it out, or have copies by mesh.data",
            *(f"strategy.{given[0]}", "strategy.kind", "mesh"),
        )


def _check_split_model(strategy: StrategySpec) -> None:
    if strategy.of == "parameters":
        raise ClashError(
            "of: parameters averages whole models, and this one is split; set of: gradients",
            *("strategy.of", "strategy.kind"),
        )


def _check_microbatches(
    strategy: StrategySpec, mesh: Mesh, batch: int, accumulate: int, whole_data: bool
) -> None:
    copies = mesh.data
    pieces = microbatches_of(strategy, mesh, batch)
    if accumulate > 1:
        raise ClashError(
            f"a model that is cut by layers takes its batch in microbatches already; leave "
            f"accumulate out, and set strategy.microbatches={accumulate * pieces}",
            *("accumulate", "strategy.microbatches"),
        )
    if strategy.microbatches is not None and batch % (copies * pieces) and not whole_data:
        share = f"{batch}" if copies == 1 else f"{batch} over {copies} copies of the model"
        near = max(1, round(batch / (copies * pieces))) * copies * pieces
        divisor = max(n for n in range(1, pieces + 1) if batch % (copies * n) == 0 or n == 1)
        raise ClashError(
            f"a batch of {share} cannot be cut into {pieces} equal microbatches; "
            f"set data.batch={near} or strategy.microbatches={divisor}",
            *("strategy.microbatches", "data.batch"),
        )
