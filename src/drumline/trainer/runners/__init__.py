"""How a rank computes a step with a part of the model: a stage of a pipeline, or a part by RPC."""
