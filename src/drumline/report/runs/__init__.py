"""A page about any runs: what they were, in what they differ, how they trained, where time went."""
