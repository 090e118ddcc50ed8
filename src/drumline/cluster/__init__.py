"""An ephemeral cluster: machines that are made, provisioned, used, billed and removed.

    cluster.yaml ── spec ── provider (ec2 | ssh | twin) ──▶ nodes
                                                             │ fleet: one SSH connection each
                       playbooks (Ansible) ── environment ───┤
                       submit · logs · pull · tunnels ───────┘

What runs on the nodes themselves is `drumline.node`.
"""
