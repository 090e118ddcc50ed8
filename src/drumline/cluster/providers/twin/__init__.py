"""Simulated nodes that live on after the command that made them: machines to rehearse with.

        this machine's own network        │  a network of its own, which has no name
                                          │
    provider ── control ──(unix socket)── host ── switch 10.77.0.254
    ssh ─────── reach ────(unix socket)───┤         ├── worker0  10.77.0.1   sshd, jobs, a timer
                                          │         └── worker1  10.77.0.2   sshd, jobs, a timer

Each node has its own network, processes, host name, home folder and temporary files, and shares
this machine's programs: as if all were made from one image. `host` holds everything; whatever
ends it ends the nodes, too, by the kernel's hand.
"""
