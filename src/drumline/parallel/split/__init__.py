"""How a model becomes stages: layers found in its forward, shared out, made into modules."""
