"""The policy allows what is called, and nothing that is not."""

from __future__ import annotations

import json

import pytest

from drumline.cluster.providers.ec2.cloud import Cloud, partition_of, policy_document
from drumline.cluster.providers.ec2.prices import refresh_prices
from drumline.cluster.providers.ec2.removal import all_regions, reap
from drumline.core.errors import CloudError


def quiet(who: str, what: str) -> None:
    pass


def test_calls_of_a_life_are_just_those_of_the_policy(aws, ec2_cluster):
    """Everything that can be asked for is asked for once."""
    spot = ec2_cluster(ec2={"ami": "auto", "spot": True})
    spot.plan()
    spot.create(quiet)
    ec2_cluster(ec2={"allow_from": "198.51.100.1/32"}).create(quiet)
    identity = {"drumline:cluster": "lab", "drumline:id": "x"}
    backend = aws.backend()
    backend.create_volume(size=8, zone_name="us-east-1a").add_tags(identity)
    subnet = backend.get_subnet(aws.subnets["us-east-1a"])
    backend.create_network_interface(subnet, "10.77.1.98", tags=identity)
    ec2_cluster(home=type(spot._home)(spot._home.path.parent / "none" / "lab")).resources()
    reap(aws.shared_session(), quiet, sleep=lambda seconds: None)
    name = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04"
    ec2_cluster(name="b", ec2={"ami": f"{name}/latest/ami-id"}).plan()
    cloud = Cloud(aws.shared_session())
    all_regions(cloud)
    refresh_prices(cloud, ["us-east-1"])

    called = {call.iam for call in aws.calls}
    allowed = {action for s in policy_document()["Statement"] for action in s["Action"]}
    assert called <= allowed
    implied = {"ec2:CreateTags"}  # AWS asks for it when a request that creates something tags it
    assert allowed - called == implied, "nothing is allowed that is never used"
    assert called == allowed - implied


def test_making_and_removing_are_bound_to_the_tag():
    document = policy_document(spot=True, role="arn:aws:iam::1:role/nodes")
    assert len(json.dumps(document, separators=(",", ":"))) < 6144, "IAM takes no more"
    names = [statement["Sid"] for statement in document["Statement"]]
    assert len(set(names)) == len(names)
    assert all(name.isalnum() for name in names)
    for statement in document["Statement"]:
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in statement["Action"])
        wide = statement["Resource"] == ["*"]
        reads = all(
            action.partition(":")[2].startswith(("Describe", "Get"))
            for action in statement["Action"]
        )
        assert reads or not wide
        if any("Delete" in a or "Terminate" in a for a in statement["Action"]):
            assert "aws:ResourceTag/drumline:cluster" in json.dumps(statement["Condition"])
    roles = [s for s in document["Statement"] if s["Action"] == ["iam:PassRole"]]
    assert roles[0]["Resource"] == ["arn:aws:iam::1:role/nodes"]


@pytest.mark.parametrize(
    ("region", "partition", "service"),
    [
        ("eu-central-1", "aws", ["ec2.amazonaws.com"]),
        ("us-gov-west-1", "aws-us-gov", ["ec2.amazonaws.com"]),
        ("cn-north-1", "aws-cn", ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]),
    ],
)
def test_other_parts_of_aws_have_other_names(region, partition, service):
    assert partition_of(region) == partition
    role = f"arn:{partition}:iam::1:role/nodes"
    document = policy_document(spot=True, role=role, partition=partition)
    arns = {arn for statement in document["Statement"] for arn in statement["Resource"]} - {"*"}
    assert {arn.split(":")[1] for arn in arns} == {partition}
    asked = document["Statement"][-1]["Condition"]["StringEquals"]["iam:PassedToService"]
    assert asked == service


def test_a_region_that_aws_does_not_have():
    with pytest.raises(CloudError, match="AWS has no region 'mars'"):
        partition_of("mars")
