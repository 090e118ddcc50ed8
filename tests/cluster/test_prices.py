"""Prices: the bundled table, a fetched one, and what a budget makes of them."""

from __future__ import annotations

import json
import math

import pytest

from drumline.cluster.providers.ec2.cloud import Cloud
from drumline.cluster.providers.ec2.prices import read_prices, refresh_prices, refreshed_table
from drumline.core.errors import CloudError, ClusterError


def quiet(who: str, what: str) -> None:
    pass


@pytest.fixture
def no_home(monkeypatch, tmp_path):
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path))


def test_the_bundled_table(no_home):
    table = read_prices("eu-west-1")
    assert table.date[:2] == "20"
    assert table.machine("us-east-1", "g4dn.xlarge") == 0.526
    assert table.machine("us-east-1", "nothing.xlarge") is None
    assert table.machine("mars-north-1", "g4dn.xlarge") is None
    for region, prices in table.machines.items():
        assert {"t3.micro", "m5.large", "c5.large", "g4dn.xlarge", "p3.2xlarge"} <= set(prices)
        assert all(0.005 < usd < 100 for usd in prices.values())
        assert prices["c5.2xlarge"] == pytest.approx(4 * prices["c5.large"], rel=1e-3)
        assert region in table.disks
    assert table.extras("mars-north-1", disk_gb=730, public=False) == max(table.disks.values())


def test_fetching_goes_before_the_bundled_table(aws):
    table = refresh_prices(Cloud(aws.shared_session()), ["us-east-1"])
    assert table.machines["us-east-1"] == {"c5.large": 0.09, "g4dn.xlarge": 0.61}
    assert table.disks == {"us-east-1": 0.07}
    assert read_prices("us-east-1").machine("us-east-1", "g4dn.xlarge") == 0.61
    assert read_prices("us-east-1").date == table.date
    assert read_prices("eu-west-1").machine("eu-west-1", "g4dn.xlarge") == 0.587
    with pytest.raises(ClusterError, match="no machines in eu-west-1"):
        refresh_prices(Cloud(aws.shared_session()), ["eu-west-1"])


def test_a_damaged_table_is_passed_over_and_replaced(aws, ec2_cluster):
    path = refreshed_table()
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = read_prices("us-east-1").to_json()
    wrong = [{**whole, key: 3} for key in whole if key != "date" and "address" not in key]
    for content in (b"{", b"[]", b"\xff", b'{"date": "2026-01-01"}', *map(json.dumps, wrong)):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        table = read_prices("us-east-1")
        assert table.machine("us-east-1", "g4dn.xlarge") == 0.526
        assert f"{path} cannot be read" in table.doubt
    cluster, said = ec2_cluster(nodes=1), []
    assert f"the bundled one of {table.date} counts" in cluster.plan().notes[0]
    cluster.create(lambda who, what: said.append((who, what)))
    assert ("prices", table.doubt) in said
    fetched = refresh_prices(Cloud(aws.shared_session()), ["us-east-1"])
    assert fetched.doubt.endswith("and was replaced")
    assert read_prices("us-east-1").machine("us-east-1", "g4dn.xlarge") == 0.61
    assert read_prices("us-east-1").doubt == ""


def test_a_budget_ends_the_nodes_earlier(aws, ec2_cluster):
    usd = 0.526 + 0.005 + 100 * 0.08 / 730
    cluster = ec2_cluster(nodes=4, budget_usd=3.0, max_hours=8)
    plan = cluster.plan()
    assert plan.hours == pytest.approx(3.0 / (4 * usd))
    assert f"+ {math.ceil(plan.hours * 3600)} ))" in cluster._user_data(0)
    assert plan.most_usd == pytest.approx(3.0)
    assert ec2_cluster(nodes=4, budget_usd=300.0).plan().hours == 8
    with pytest.raises(CloudError, match=r"pays for 5.5 minutes of 4 x g4dn.xlarge"):
        ec2_cluster(nodes=4, budget_usd=0.2).create(quiet)
    assert aws.left() == []


def test_a_price_that_is_not_known(aws, ec2_cluster):
    cluster = ec2_cluster(ec2={"instance_type": "m5zn.large"})
    plan = cluster.plan()
    assert plan.price_usd == 0.0
    assert plan.priced == "not known"
    assert any("is not known; drumline prices" in note for note in plan.notes)
    assert len(cluster.create(quiet)) == 2
    cluster.remove(quiet)
    for attempt in ("plan", "create"):
        limited = ec2_cluster(ec2={"instance_type": "m5zn.large"}, budget_usd=5)
        with pytest.raises(CloudError, match=r"budget_usd cannot be kept: the price of m5zn.large"):
            limited.plan() if attempt == "plan" else limited.create(quiet)
    assert aws.left() == []
