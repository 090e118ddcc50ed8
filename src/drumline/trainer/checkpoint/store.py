"""Checkpoints that survive: a `kill -9` at any moment, a full disk, a flipped bit.

    checkpoints/step-000000094/
        model.safetensors            parameters and buffers (model-part-K, where it is split)
        optimizer.safetensors        its tensors (-part-K; -rank-N, where copies differ)
        state.json                   state, scalars, the SHA-256 of each file, and its own

Tensors have the names and shapes of the whole model, however it was split (`Snapshot`). All
files are written into a hidden folder, synced, and the folder is renamed into place: it is
there whole or not at all. Reading checks every hash; a damaged checkpoint is passed over for the
one before. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from drumline.core.errors import CheckpointError
from drumline.core.files import fsync, hash_file
from drumline.models import tensors_sha256
from drumline.parallel.shard_spec import ShardSpec
from drumline.trainer.checkpoint.snapshot import (
    OptimizerScalars,
    Snapshot,
    TensorFiles,
    load_model,
    load_optimizer,
    write_tensors,
)

STATE = "state.json"
_DAMAGED = (OSError, ValueError, KeyError, TypeError)


@dataclass(kw_only=True)
class TrainState:
    """How far a run has come."""

    step: int
    loss: float | None = None
    """mean training loss of the epoch that ended here"""
    train_s: float = 0.0
    """seconds spent in steps so far"""
    time_s: float = 0.0
    """seconds since the worker started, and in the sessions before"""
    samples: int = 0
    """samples trained on so far, over all ranks"""
    scores: list[dict[str, float]] = field(default_factory=list)
    """of each whole epoch: its last step, and the loss and metrics that decisions look at"""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose hashes were checked."""

    path: Path
    state: TrainState
    scalars: Mapping[str, OptimizerScalars]
    """by file"""

    def load_model(self, model: nn.Module, shard: ShardSpec) -> None:
        """Put parameters and buffers into a model, or into the part of it that a rank holds."""
        try:
            load_model(model, shard, TensorFiles(self._files("model*")))
        except ValueError as error:
            raise CheckpointError(
                f"{self.path} does not fit the model: {error}; resume with the model that wrote it"
            ) from None

    def weights_sha256(self) -> str:
        """Hash the whole model, one tensor after the other."""
        return tensors_sha256(TensorFiles(self._files("model*")))

    def load_optimizer(
        self, optimizer: Optimizer, model: nn.Module, shard: ShardSpec, rank: int | None = None
    ) -> None:
        """Put its state into an optimizer; `rank` where each rank has a state of its own."""
        files = self._files("optimizer*" if rank is None else f"optimizer-rank-{rank}")
        scalars: OptimizerScalars = {"groups": [], "state": {}}
        for file in files:
            part = self.scalars[file.name]
            scalars = {"groups": part["groups"], "state": {**scalars["state"], **part["state"]}}
        load_optimizer(optimizer, model, shard, TensorFiles(files), scalars)

    def _files(self, which: str) -> list[Path]:
        return sorted(self.path.glob(f"{which}.safetensors"))


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self.best: int | None = None
        """the step of one that is kept, too, however old it is"""

    def save(
        self,
        state: TrainState,
        snapshot: Snapshot,
        shard: ShardSpec,
        *,
        rank: int,
        shared: bool = True,
        gather: Callable[[Path], None] = lambda _: None,
    ) -> Path | None:
        """Write a checkpoint; every rank calls this. Returns its path on the leader.

        The snapshot is of this rank's part, whole where this rank writes it. Unless the optimizer
        state of a part's copies is `shared`, each is written. Where several ranks write, `gather`
        blocks until what all have written into a folder is on the leader's disk.
        """
        draft = self._folder / f".draft-{state.step:09d}"
        suffix = f"-part-{shard.part}" if shard.parts > 1 else ""
        try:
            if shard.writes or not shared:
                draft.mkdir(parents=True, exist_ok=True)
                own = suffix if shared else f"-rank-{rank}"
                path = draft / f"optimizer{own}.safetensors"
                write_tensors(path, snapshot.optimizer)
                scalars = path.with_name(f"{path.name}.json")
                scalars.write_text(json.dumps(snapshot.scalars))
                fsync(scalars)
            if shard.writes:
                write_tensors(draft / f"model{suffix}.safetensors", snapshot.model)
            if shard.parts > 1 or not shared:
                gather(draft)
            return self._publish(draft, state) if rank == 0 else None
        except OSError as error:
            if rank == 0:  # others leave the draft to the next writer: peers may be writing to it
                shutil.rmtree(draft, ignore_errors=True)
            raise self._explain(error, state.step) from error

    def newest(self, damaged: Callable[[Path, str], None]) -> Checkpoint | None:
        """Return the newest checkpoint whose hashes are right; None where none was ever written.

        Damaged ones are told to `damaged` and set aside (`damaged-…`), so that they neither count
        as newest again nor push out good ones. If all are damaged, that is a CheckpointError.
        """
        paths = self._paths()
        for path in paths:
            try:
                return _read(path)
            except _DAMAGED as error:
                damaged(path, str(error))
                aside = path.with_name(f"damaged-{path.name}")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
        if paths:
            raise CheckpointError(
                f"all checkpoints in {self._folder} are damaged; put a copy back, or start anew"
            )
        return None

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of one step is, or would be."""
        return self._folder / f"step-{step:09d}"

    def at(self, step: int) -> Checkpoint:
        """Open the checkpoint of one step, which another rank has found whole."""
        path = self.path_of(step)
        try:
            return _read(path)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"rank 0 resumes from {path}, but it cannot be read here: {error}; "
                f"all ranks must see the same run directory"
            ) from None

    def _publish(self, draft: Path, state: TrainState) -> Path:
        scalars = {}
        for file in list(draft.glob("optimizer*.json")):
            scalars[file.stem] = json.loads(file.read_text())
            file.unlink()
        content = {
            **vars(state),
            "scalars": scalars,
            "sha256": {file.name: hash_file(file) for file in sorted(draft.iterdir())},
        }
        sealed = draft / STATE
        sealed.write_text(json.dumps({**content, "seal": _seal(content)}))
        fsync(sealed)
        fsync(draft)
        final = self.path_of(state.step)
        with suppress(OSError):  # the same step again, which may know more: the old one goes below
            final.rename(draft.with_name(f"{draft.name}-before"))
        draft.rename(final)
        fsync(self._folder)
        left = self._folder.glob(".draft-*")  # by a killed writer
        spared = None if self.best is None else self.path_of(self.best)
        for old in [*self._paths()[self._keep :], *left]:
            if old != spared:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"), reverse=True)

    def _explain(self, error: OSError, step: int) -> CheckpointError:
        rescue = "make room and start again"
        if kept := self._paths():
            rescue = (
                f"the one before it, {kept[0].name}, is untouched: make room and continue with "
                f"drumline train resume={self._folder.parent}"
            )
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror
        return CheckpointError(f"cannot write the checkpoint of step {step}: {reason}; {rescue}")


def _read(path: Path) -> Checkpoint:
    content = json.loads((path / STATE).read_text())
    if content.pop("seal") != _seal(content):
        raise ValueError(f"{STATE} does not have the hash that was written with it")
    for name, expected in content["sha256"].items():
        if hash_file(path / name) != expected:
            raise ValueError(f"{name} does not have the hash that was written with it")
    fields = TrainState.__dataclass_fields__
    state = TrainState(**{key: content[key] for key in fields if key in content})
    return Checkpoint(path, state, content["scalars"])


def _seal(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
