"""A day with a cluster of simulated nodes, command by command, as a user types them."""

from __future__ import annotations

import pytest
from laptop import LONG_JOB, Laptop
from twins import need_twins

pytestmark = pytest.mark.timeout(300)
SPEC = "{model: mlp, data: {samples: 400, batch: 40}, strategy: ddp, max_steps: 4}\n"


def test_from_init_to_down(tmp_path):
    need_twins()
    drumline = Laptop(tmp_path, {})
    (drumline.project / "spec.yaml").write_text(SPEC)
    (drumline.project / "long.py").write_text(LONG_JOB)
    assert "drumline up" in drumline("cluster", "init", "twin", "--name", "day").out
    try:
        assert "worker1" in drumline("plan").out
        up = drumline("up")
        assert "day is up" in up.out + up.err
        submitted = drumline("submit", "--", "spec.yaml")
        assert "steps          4 in" in submitted.out
        drumline("submit", "--detach", "--", "long.py")
        status = drumline.json("status", "--json")
        jobs = {job["id"]: job["state"]["phase"] for job in status["jobs"]}
        (trained,) = [job for job, phase in jobs.items() if phase == "done"]
        (endless,) = set(jobs) - {trained}
        drumline.start("logs", "-f", endless).wait_for("step 3")
        drumline("cancel", endless)
        assert "step 3" in drumline("logs", endless).out
        drumline("pull", trained)
        assert list(drumline.project.glob(f"runs/{trained}/**/summary.json"))
        assert "worker0" in drumline("ssh", "worker0", "hostname").out
        drumline("extend", "3h")
        assert "nodes is 1; write nodes: 2" in drumline("plan", "nodes=1", code=1).err
        another_home = Laptop(tmp_path / "another", {})
        assert another_home.json("reap", "--yes", "--json")["removed"] == []
    finally:
        drumline.close()
        ended = drumline("down")
    assert "left: 0 resources" in ended.out + ended.err
    assert "no cluster" in drumline("status", code=2).err
