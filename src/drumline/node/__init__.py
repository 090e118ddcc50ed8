"""What runs on a cluster's nodes: receives files, runs jobs one after the other, reports on them.

    submit ─▶ handoff ─▶ leader, follower (peer) ─▶ agent: drumline.agent, its ranks
    control              reports on jobs, and cancels them
    receive, send        files from and to the laptop; keeper, storage: copies to the storage
    services, requests   Jupyter and TensorBoard, and what notebooks ask of the laptop
    hangup, ownership    sent as source text, before anything of ours is on a node; environment too

The laptop starts these modules over SSH, by the Python of the node's environment. They know nothing
of clouds and of SSH, and do not import torch: `python -m drumline.agent` does the work.
"""
