"""Lab 4: one model in parts, by layers or inside them, against one process and data parallelism."""
