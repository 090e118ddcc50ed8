"""Provisioning: the nodes' Python environment, by Ansible, where its hash differs.

environment   what it is made of, and the hash of that
playbook      one run of `ansible-playbook` over an inventory of ours
provision     which nodes need it, and what went wrong on which
"""
