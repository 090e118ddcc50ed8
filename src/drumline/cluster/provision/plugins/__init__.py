"""Plugins that Ansible loads from this folder by their files' names."""
