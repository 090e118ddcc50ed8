"""Machines of Amazon EC2.

provider ── shared_resources (key pair, groups) ── launch (nodes) ── removal (by tags alone)
    └── image, network, prices: what is read before anything is created

`cloud` is the only client of AWS, `errors` classifies its errors, `policy` lists what it must
allow, `inventory` reads resources back by their tags.
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
