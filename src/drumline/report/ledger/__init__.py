"""Where the time of a run went: wait and transfer of each rank, pipeline bubbles, traces."""
