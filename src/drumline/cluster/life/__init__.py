"""The life of a cluster: up, the limits that end it, its journal and receipt, down and reap."""
