"""An ephemeral cluster: machines that are created, provisioned, used, billed and removed.

    cluster.yaml ── spec ── providers (ec2 | ssh | twin) ──▶ nodes
                                                              │ ssh: one connection each
              life: up, limits, receipt, down, reap ──────────┤
              provision: the Python environment, by Ansible ──┤
              files: sync, pull, storage · jobs: submit, … ───┘

What runs on the nodes themselves is `drumline.node`.

What fails raises a ClusterError, which says the way out: a HostError where it is a node, a
CloudError where it is the cloud, or a UsageError. Docstrings name these only where a caller tells
them apart, or where it matters what is left behind.
"""
