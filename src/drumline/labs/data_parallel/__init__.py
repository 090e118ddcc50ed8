"""Lab 3, data parallelism: who sees which samples, what it does to learning, what it gains."""
