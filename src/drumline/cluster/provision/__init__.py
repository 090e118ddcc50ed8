"""Provisioning: the nodes' Python environment, by Ansible, where its hash differs."""
