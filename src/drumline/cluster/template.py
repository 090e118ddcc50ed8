"""What `drumline cluster init` writes: a commented cluster.yaml to start from."""

from __future__ import annotations

_HEAD = """\
# A cluster that is made by `drumline up` and removed by `drumline down`.
# `drumline plan` says what it will consist of and cost, and changes nothing.

name: {name}            # part of every resource's name and tags
provider: {provider}
nodes: 2
workers: auto           # ranks on each node: one for each GPU, or one
"""

_LIMITS = """
# Nodes end themselves, even if this laptop never comes back:
max_hours: 8            # after so long at most (drumline extend 2h moves it)
idle_minutes: 60        # after so long without a job; null: never
{budget}
"""

_ENVIRONMENT = """
environment:
  # requirements: requirements.txt   # installed on all nodes
  # playbook: mine.yml               # an Ansible playbook of yours, after ours
  python: auto          # the interpreter to stand on; auto: the one that has PyTorch

# storage: s3://bucket/prefix   # run directories are copied there; any fsspec URL, or a folder
"""

_EC2 = """
ec2:
  # region: eu-central-1             # default: your AWS configuration's
  instance_type: g4dn.xlarge
  ami: auto             # AWS's deep-learning image; or ami-…, or an SSM parameter (/aws/service/…)
  spot: false           # cheaper, and may be taken away
  disk_gb: 100
  # zones: [eu-central-1a, eu-central-1b]   # tried in this order when capacity is short
  # subnet: subnet-…                        # default: the region's default network
  # key_file: ~/.ssh/id_ed25519             # default: a key is made for the cluster
  # allow_from: 203.0.113.7/32              # who may reach SSH; default: the address you call from
  # instance_profile: my-profile            # lets nodes write to the storage
"""

_SSH = """
ssh:
  root: ~/drumline      # the folder on them that everything goes to
  hosts:                # node 0, the leader, first
    - {host: 192.0.2.10, user: me}
    - {host: 192.0.2.11, user: me, port: 22}
      # also: key_file, address (as the other nodes see it), host_key (as in known_hosts)
"""

_TWIN = """
# Simulated nodes on this machine, each with a real SSH server and a link of its own.
twin:
  link: {rate: 1gbit}
"""

_PARTS = {"ec2": _EC2, "ssh": _SSH, "twin": _TWIN}


def cluster_template(provider: str, name: str) -> str:
    """Return the text for one provider."""
    budget = "budget_usd: 20          # before they have cost more"
    limits = _LIMITS.format(budget=budget if provider == "ec2" else "").rstrip("\n") + "\n"
    return (
        _HEAD.format(name=name, provider=provider)
        + (limits if provider != "ssh" else "")
        + _ENVIRONMENT
        + _PARTS[provider]
    )
