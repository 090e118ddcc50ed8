"""What runs on a cluster's nodes: receives files, runs jobs one after the other, tells of them.

The laptop starts these modules over SSH, by the Python of the node's environment. They know nothing
of clouds and of SSH, and do not import torch: `python -m drumline.agent` does the work.
"""
