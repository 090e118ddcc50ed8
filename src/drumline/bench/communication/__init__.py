"""`drumline bench collectives` and `drumline bench aggregation`: what communication costs."""
