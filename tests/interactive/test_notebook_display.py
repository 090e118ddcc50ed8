"""The display of a run in a notebook: what is drawn while it lasts, and in the end."""

from __future__ import annotations

import sys
import types

from drumline.core.rundir import EventWriter, RunDir
from drumline.interactive.display import NotebookDisplay
from drumline.report.progress import RunProgress


class Handle:
    """IPython's handle of what a cell shows."""

    def update(self, shown, *, raw):
        assert raw
        self.lines = shown["text/plain"].splitlines()


def test_a_long_run_draws_its_last_epochs_and_in_the_end_all(tmp_path, monkeypatch):
    handle = Handle()
    ipython = types.SimpleNamespace(display=lambda *_, **__: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython)
    run = RunDir.create("demo", root=tmp_path)
    with EventWriter(run.rank_events(0)) as events:
        events.write("start", attempt=0)
        events.write("ready", total_steps=400, steps_per_epoch=1)
        for epoch in range(400):
            events.write("epoch", epoch=epoch, step=epoch + 1, loss=0.5)
    with NotebookDisplay(RunProgress(run, 1), "demo-1") as display:
        display.update()
        while_it_lasts = handle.lines
    epochs = [line.split()[1] for line in while_it_lasts if line.startswith("epoch")]
    assert epochs == [str(number) for number in range(351, 401)]
    assert any("samples/s" in line and "rank" in line for line in while_it_lasts)
    assert len(handle.lines) == 401
    assert handle.lines[0] == "demo-1"
