"""An ephemeral cluster: machines that are created, provisioned, used, billed and removed.

    cluster.yaml ── spec ── providers (ec2 | ssh | twin) ──▶ nodes
                                                              │ ssh: one connection each
              life: up, limits, receipt, down, reap ──────────┤
              provision: the Python environment, by Ansible ──┤
              files: sync, pull, storage · jobs: submit, … ───┘

What runs on the nodes themselves is `drumline.node`.
"""
