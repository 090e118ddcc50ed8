"""What `submit` makes of the words that name a script."""

from __future__ import annotations

import asyncio
import json

import pytest

from drumline.cli.submit import JobView, path_from_here
from drumline.cluster.jobs.submit import ask_job_stacks, cancel
from drumline.cluster.providers import Machine
from drumline.cluster.ssh.remote import Done
from drumline.core.errors import HostError, UsageError
from drumline.node.job import JobState
from drumline.spec.load import validate_spec, write_run_spec
from metered_runs import ddp_logs, make_metered_run


def test_a_script_is_named_from_the_folder_that_travels(tmp_path, monkeypatch):
    (tmp_path / "a project" / "src").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a project")
    monkeypatch.chdir(tmp_path / "link")
    for name in ("src/train.py", "./src/train.py", "../a project/src/train.py"):
        assert path_from_here(name) == "src/train.py"
    assert path_from_here("..data/train.py") == "..data/train.py"
    for folder in ("a project", "link"):
        assert path_from_here(str(tmp_path / folder / "src" / "train.py")) == "src/train.py"
    assert path_from_here("/opt/train.py") == "/opt/train.py", "the nodes may have it"
    with pytest.raises(UsageError, match=r"^\.\./train\.py is outside of .* which alone travels"):
        path_from_here("../train.py")


def test_a_view_shows_a_script_without_a_table_and_a_training_with_its_title(tmp_path, capsys):
    """It begins when enough was pulled, and what was drawn is drawn no second time."""
    logs = [[{"event": "note", "text": "noted"}, *log] for log in ddp_logs()]
    for trains in (False, True):
        folder = tmp_path / ("spec" if trains else "script")
        view = JobView(folder, trains=trains)
        view.update()
        run = make_metered_run(folder / "run", logs)
        view.update()
        assert capsys.readouterr().err == ""
        run.write_json("manifest.json", {"nodes": 2})
        (folder / "state.json").write_text(json.dumps(JobState(workers=1).to_json()))
        if trains:
            spec = validate_spec({"name": "x", "model": "mlp", "nodes": 2})
            write_run_spec(run, spec)
        view.update()
        view.update()
        view.close()
        told = capsys.readouterr()
        assert (told.out + told.err).count("noted") == 1
        assert ("mlp on" in told.out) == trains


@pytest.mark.parametrize("printed", [b"", b"{}\n", b'{"beat": 1}\n'])
def test_an_answer_that_says_nothing_is_told_in_a_sentence(printed):
    class Silent:
        machine = Machine(node=0, host="h", address="a", user="u")

        async def run(self, argv, *, timeout_s):
            return Done(code=0, stdout=printed)

    for question in (ask_job_stacks, cancel):
        with pytest.raises(HostError, match=r"worker0 cannot run drumline .*: drumline up"):
            asyncio.run(question([Silent()], "train-1"))
