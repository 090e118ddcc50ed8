"""Machines of Amazon EC2.

provider ── ground (key pair, groups) ── nodes (launch, wait) ── removal (by tags alone)
    └── image, network, cost: what is read before anything is made

`cloud` is the one way to AWS, `refusals` tells its errors apart, `policy` says what it must allow.
"""

from drumline.cluster.providers.ec2.cloud import Cloud, open_session
from drumline.cluster.providers.ec2.policy import ACTIONS, policy_document
from drumline.cluster.providers.ec2.provider import Ec2Provider
from drumline.cluster.providers.ec2.removal import all_regions, reap
from drumline.cluster.providers.ec2.user_data import NodeBoot, cloud_config, limits_script

__all__ = [
    "ACTIONS",
    "Cloud",
    "Ec2Provider",
    "NodeBoot",
    "all_regions",
    "cloud_config",
    "limits_script",
    "open_session",
    "policy_document",
    "reap",
]
