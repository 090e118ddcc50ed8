"""What is read back from a run directory."""

import json

import pytest

from drumline.core.rundir import RunDir
from drumline.report.page.translator import Language
from drumline.report.runs.record import mean_loss, read_record
from drumline.spec.load import validate_spec, write_run_spec
from metered_runs import ddp_logs, make_metered_run


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


def test_the_record_of_a_script_has_times_and_no_losses(tmp_path):
    run = make_metered_run(tmp_path / "train-1", ddp_logs(steps=4, samples=32), rates=[10**8] * 2)
    record = read_record(run)
    assert (record.spec, record.curve, record.loss, record.gaps) == (None, [], None, [])
    assert [time.step for time in record.times] == [1, 2, 3, 4]
    assert record.times[-1].seconds == pytest.approx(4 * 0.024)
    assert (record.samples, record.nodes, record.plans[1].rate) == (4 * 64, 2, 10**8)
    assert record.result["sent_bytes"] == 2 * 5000
    assert record.result["time_s"] == 2.5  # what its summary has


def test_samples_are_told_only_where_every_step_tells_them(tmp_path):
    logs = ddp_logs(steps=4, samples=32)
    del logs[1][2]["samples"]
    record = read_record(make_metered_run(tmp_path / "train-1", logs))
    assert (record.samples, record.samples_per_s) == (None, None)
    assert "samples_per_s" not in record.result


def test_a_script_that_ended_early_says_how_far_it_came(tmp_path):
    run = make_metered_run(tmp_path / "train-1", ddp_logs(steps=3), done=False)
    assert read_record(run).say_gaps(Language.EN) == [
        "train-1: has no result; its events end at step 3"
    ]
