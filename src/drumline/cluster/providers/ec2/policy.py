"""The least that AWS must allow: the actions that are called, and an IAM policy of just those.

Reading is allowed everywhere, since EC2's listings know no narrower right. Making is allowed only
with the tag that says that this tool made it, changing and removing only on what has that tag: a
laptop with this policy cannot touch anybody else's machines.
"""

from __future__ import annotations

from typing import Any

from drumline.cluster.providers.ec2.inventory import CLUSTER

READS = (
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeKeyPairs",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeRegions",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
    "pricing:GetProducts",
)
IMAGES = ("ssm:GetParameter", "ssm:GetParametersByPath")
"""of AWS's public parameters"""
MAKES = {
    "ec2:CreatePlacementGroup": ("placement-group",),
    "ec2:CreateSecurityGroup": ("security-group",),
    "ec2:ImportKeyPair": ("key-pair",),
    "ec2:RunInstances": ("instance", "network-interface", "spot-instances-request", "volume"),
}
"""what each of them makes, tagged"""
USES = {
    "ec2:CreateSecurityGroup": ("vpc",),
    "ec2:RunInstances": ("key-pair", "placement-group", "security-group", "subnet"),
}
"""what it must be allowed to refer to"""
CHANGES = (
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:DeleteKeyPair",
    "ec2:DeleteNetworkInterface",
    "ec2:DeletePlacementGroup",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteVolume",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:TerminateInstances",
)
IMPLIED = ("ec2:CreateTags",)
"""never called, but asked for by AWS when a request that creates something tags it"""
ACTIONS = tuple(sorted((*READS, *IMAGES, *MAKES, *CHANGES)))
"""everything that is called"""


def policy_document(
    *, spot: bool = False, role: str | None = None, partition: str = "aws"
) -> dict[str, Any]:
    """Return the IAM policy.

    Args:
        spot: also allow the role that AWS makes when an account uses spot for the first time.
        role: the ARN of the role in `ec2.instance_profile`, which nodes must be given.
        partition: the part of AWS that the account is in: aws, aws-cn, aws-us-gov, …
    """
    arn = f"arn:{partition}"
    made = {"Null": {f"aws:RequestTag/{CLUSTER}": "false"}}
    ours = {"Null": {f"aws:ResourceTag/{CLUSTER}": "false"}}
    statements = [
        _allow("Read", list(READS), ["*"]),
        _allow("FindImages", list(IMAGES), [f"{arn}:ssm:*::parameter/aws/service/*"]),
    ]
    for action, kinds in MAKES.items():
        name = action.partition(":")[2]
        statements.append(_allow(f"{name}Tagged", [action], _arns(arn, kinds), made))
    for action, kinds in USES.items():
        name = action.partition(":")[2]
        resources = _arns(arn, kinds)
        if action == "ec2:RunInstances":
            resources.append(f"{arn}:ec2:*::image/*")
        statements.append(_allow(f"{name}With", [action], resources))
    creating = [action.partition(":")[2] for action in MAKES]
    statements += [
        _allow(
            "TagWhatIsMade",
            list(IMPLIED),
            [f"{arn}:ec2:*:*:*/*"],
            {"StringEquals": {"ec2:CreateAction": creating}},
        ),
        _allow("ChangeAndRemoveOurs", list(CHANGES), [f"{arn}:ec2:*:*:*/*"], ours),
    ]
    if spot:
        service = {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}}
        spot_role = f"{arn}:iam::*:role/aws-service-role/spot.amazonaws.com/*"
        statements.append(
            _allow("FirstSpot", ["iam:CreateServiceLinkedRole"], [spot_role], service)
        )
    if role is not None:
        names = ["ec2.amazonaws.com"]
        if partition == "aws-cn":
            names.append("ec2.amazonaws.com.cn")  # where services have names of their own
        to_ec2 = {"StringEquals": {"iam:PassedToService": names}}
        statements.append(_allow("GiveNodesTheirRole", ["iam:PassRole"], [role], to_ec2))
    return {"Version": "2012-10-17", "Statement": statements}


def _arns(arn: str, kinds: tuple[str, ...]) -> list[str]:
    return [f"{arn}:ec2:*:*:{kind}/*" for kind in kinds]


def _allow(
    name: str, actions: list[str], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": name,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resources,
    }
    if condition is not None:
        statement["Condition"] = condition
    return statement
