"""Starting the ranks of a run on this machine, and watching over them. No torch.

Import from the modules themselves: the agents must start before anything slow is imported.
"""
