"""What `up` and `down` hold to, whatever a node, a person or another command does."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from drumline.cluster.home import ClusterHome, lock_cluster
from drumline.cluster.jobs.submit import check_job_id
from drumline.cluster.life.limits import decide_term
from drumline.cluster.life.up import _refuse_another, write_spec
from drumline.cluster.providers import Machine
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import ClusterError, HostError


def machine(node, *, hours=1.0, price=1.0):
    since = time.time() - hours * 3600
    fields = {"host": "h", "address": "a", "user": "u", "identity": f"i-{node}"}
    return Machine(node=node, price_usd=price, since=since, **fields)


@pytest.mark.parametrize("job", ["../../victim", "/etc/x", "a/b", "", ".hidden", "..", "x" * 81])
def test_a_node_cannot_name_a_job_so_that_it_leads_elsewhere(job):
    with pytest.raises(HostError, match="which no job is called"):
        check_job_id(job)
    assert check_job_id("train-3f9a01") == "train-3f9a01"


def test_another_region_or_provider_is_another_cluster(home):
    first = ClusterSpec(name="lab", provider="ec2", ec2={"region": "eu-central-1"})
    _refuse_another(first, home)  # nothing is there yet
    write_spec(home, first)
    _refuse_another(first, home)
    for other, what in (
        (ClusterSpec(name="lab", provider="ec2", ec2={"region": "us-east-1"}), "region"),
        (first.model_copy(update={"provider": "twin"}), "provider"),
    ):
        with pytest.raises(ClusterError, match=f"is in use: there is such a cluster with {what}"):
            _refuse_another(other, home)


def test_the_deadline_keeps_the_budget_when_nodes_are_added(home):
    home.make()
    spec = ClusterSpec(name="lab", provider="ec2", budget_usd=10, max_hours=100)
    first = [machine(0), machine(1)]
    term = decide_term(spec, home, first, made=first, former=())
    assert term.deadline is not None
    assert term.deadline == pytest.approx(time.time() + 4 * 3600, abs=5)  # 10 USD, 2 USD/h, 1 h ago
    home.note(deadline=term.deadline, began=term.began, limits=term.limits)
    assert decide_term(spec, home, first, made=(), former=()).deadline == term.deadline
    more = [*first, machine(2, hours=0), machine(3, hours=0)]
    later = decide_term(spec, home, more, made=more[2:], former=()).deadline
    assert later == pytest.approx(time.time() + 2 * 3600, abs=5)  # 8 USD are left, at 4 USD/h


def test_a_lock_names_its_holder_and_outlives_its_own_file(tmp_path):
    home = ClusterHome(tmp_path / "lab")
    with lock_cluster(home):
        code = (
            "import sys; from pathlib import Path; from drumline.cluster.home import ClusterHome\n"
            "from drumline.cluster.home import lock_cluster\n"
            "with lock_cluster(ClusterHome(Path(sys.argv[1]))): print('got it')"
        )
        words = [sys.executable, "-c", code, str(home.path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f"(process {os.getpid()} of " in done.stderr
        home.lock.unlink()  # as `down` does at its end
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.stdout == "got it\n"
    with lock_cluster(home):
        pass
