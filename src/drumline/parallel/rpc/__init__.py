"""Model parallelism by `torch.distributed.rpc`: a leader that calls the parts of a model.

The form in which labs teach it, with RRefs, distributed autograd and the distributed optimizer, and
no more than that: PyTorch only maintains RPC. For speed take a pipeline of plain messages.
"""
