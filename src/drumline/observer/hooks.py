"""Where a program is observed: hooks in PyTorch, below what the program itself can see or change.

    what                 where
    ──────────────────────────────────────────────────────────────────────────────────────────
    what it communicates the operators of torch.distributed, see `collectives`
    batches              the iterator of a DataLoader
    backwards            autograd's engine, as Python calls it
    optimizer steps      torch's own global hooks
    CUDA graphs          where their capture begins and ends

Nothing is replaced that a program would look at: classes, functions and groups stay what they are.
A fault in here is said once, and ends the observation, not the program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from drumline.core import rundir, status
from drumline.observer import clock, collectives, recorder, steps
from drumline.observer.collectives import CollectiveHooks
from drumline.observer.dynamo import keep_from_dynamo
from drumline.observer.recorder import Recorder
from drumline.observer.steps import count_samples


class Hooks(contextlib.ExitStack):
    """The hooks of this process, in place until the context ends."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder: Recorder | None = recorder
        """None: let everything pass"""
        os.register_at_fork(after_in_child=partial(_forget, weakref.ref(self)))

    def __enter__(self) -> Self:
        ours = (sys.modules[__name__], collectives, recorder, steps, clock, status, rundir)
        keep_from_dynamo(*ours)
        CollectiveHooks(self).place()
        self._hook_loader()
        self._hook_backward()
        self._hook_optimizers()
        self._hook_capture()
        return self

    def replace(self, owner: Any, name: str, by: Callable[[Any], Any]) -> None:
        """Replace an attribute by what is made of it, until the context ends."""
        original = getattr(owner, name)
        self.callback(setattr, owner, name, original)
        setattr(owner, name, functools.wraps(original)(by(original)))

    def note(self, note: Callable[[Recorder], Any]) -> Any:
        """Make a note, where notes are made; no error in doing so reaches the program."""
        recorder = self.recorder
        if recorder is None:
            return None
        try:
            return note(recorder)
        except Exception as error:
            self.recorder = None
            recorder.status.remove()  # it would tell of a rank that stands still
            said = f"{type(error).__name__}: {error}"
            print(f"drumline no longer observes this rank: {said}", file=sys.stderr)
            return None

    def _hook_loader(self) -> None:
        def timed(count: Callable[[Any], int | None]) -> Callable[[Any], Any]:
            def hooked(call: Any) -> Any:
                def fetch(this: Any) -> Any:
                    began = self.note(Recorder.fetch_began)
                    samples = None
                    try:
                        batch = call(this)
                        samples = self.note(lambda _: count(batch))
                        return batch
                    finally:
                        if began is not None:
                            self.note(lambda recorder: recorder.fetch_ended(began, samples))

                return fetch

            return hooked

        self.replace(_BaseDataLoaderIter, "__next__", timed(count_samples))
        self.replace(DataLoader, "__iter__", timed(lambda _: None))

    def _hook_backward(self) -> None:
        def hooked(run: Any) -> Any:
            def backward(*args: Any, **kwargs: Any) -> Any:
                began = self.note(Recorder.backward_began)
                try:
                    return run(*args, **kwargs)
                finally:
                    if began is not None:
                        self.note(lambda recorder: recorder.backward_ended(began))

            return backward

        self.replace(torch.autograd, "_engine_run_backward", hooked)

    def _hook_optimizers(self) -> None:
        running: list[tuple[int, int]] = []

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            began = self.note(lambda recorder: recorder.update_began(id(optimizer)))
            if began is not None:
                running.append((id(optimizer), began))

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            while running:  # one that was left by an error has no end
                which, began = running.pop()
                if which == id(optimizer):
                    self.note(partial(Recorder.update_ended, optimizer=which, began=began))
                    return

        self.callback(register_optimizer_step_pre_hook(before).remove)
        self.callback(register_optimizer_step_post_hook(after).remove)

    def _hook_capture(self) -> None:
        """Note when CUDA graphs are captured: a thread that asks the GPU then would spoil them."""

        def began(capture_begin: Any) -> Any:
            def begin(this: Any, *args: Any, **kwargs: Any) -> Any:
                self.note(lambda recorder: recorder.clock.capture_began())
                try:
                    return capture_begin(this, *args, **kwargs)
                except BaseException:
                    self.note(lambda recorder: recorder.clock.capture_ended())
                    raise

            return begin

        def ended(capture_end: Any) -> Any:
            def end(this: Any) -> Any:
                try:
                    return capture_end(this)
                finally:
                    self.note(lambda recorder: recorder.clock.capture_ended())

            return end

        self.replace(torch.cuda.CUDAGraph, "capture_begin", began)
        self.replace(torch.cuda.CUDAGraph, "capture_end", ended)


def _forget(reference: weakref.ref[Hooks]) -> None:
    """Let everything pass in a forked child: its parent is the rank."""
    if (hooks := reference()) is not None:
        hooks.recorder = None
