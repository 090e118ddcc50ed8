"""What is read back from a run directory."""

import json

from drumline.core.rundir import RunDir
from drumline.report.runs.record import mean_loss, read_record
from drumline.spec.load import validate_spec, write_run_spec


def step(number, loss):
    times = {"t": 0, "data": 0, "total": 10**6, "blocked": [], "spans": []}
    return {"event": "step", "step": number, "loss": loss, "samples": 8, **times}


def test_a_loss_is_that_of_the_whole_batch():
    """Two copies, of two ranks each; the second has a third of the samples."""
    copies = [(4.0, 20), (4.0, 20), (1.0, 10), (1.0, 10)]
    assert mean_loss([{"loss": loss, "samples": samples} for loss, samples in copies]) == 3.0
    assert mean_loss([{"loss": 2.0, "samples": 0}] * 2) == 2.0


def test_steps_that_a_restart_undid_are_not_in_the_curve(tmp_path):
    """All ranks had come to step 5; after the restart the run ended at step 3."""
    run = RunDir.create("x", root=tmp_path, exact=tmp_path / "again")
    write_run_spec(run, validate_spec({"name": "again", "model": "mlp", "workers": 2}))
    events = [
        {"event": "start"},
        *(step(number, 1.0) for number in range(1, 6)),
        {"event": "start"},
        {"event": "restore", "step": 2},
        step(3, 0.5),
    ]
    for rank in range(2):
        run.rank_events(rank).write_text("".join(json.dumps(event) + "\n" for event in events))
    record = read_record(run)
    assert [(point.step, point.loss) for point in record.curve] == [(1, 1.0), (2, 1.0), (3, 0.5)]
    assert record.curve[-1].samples == 3 * 16
