"""Starting the ranks of a run on this machine, and watching over them. No torch."""

from drumline.launch.agents import Agents
from drumline.launch.join import outer_launcher
from drumline.launch.outcome import check_outcome

__all__ = ["Agents", "check_outcome", "outer_launcher"]
