"""How a rank computes a step with a part of the model: a stage of a pipeline, or a part by RPC.

A rank with the whole model, or with its share of each layer, computes as `train/train.py` shows.
"""
