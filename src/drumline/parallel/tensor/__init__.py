"""Tensor parallelism: one layer's work, and its weights, shared out over ranks."""

from drumline.parallel.tensor.apply import Engine, apply_tensor_parallel
from drumline.parallel.tensor.exchange import Exchange, SplitLayer, shares_of
from drumline.parallel.tensor.functions import enter_split, gather_shares, keep_share, sum_partial
from drumline.parallel.tensor.layers import (
    ChannelConv2d,
    ColumnLinear,
    HeadAttention,
    RowLinear,
    ShareDropout,
)
from drumline.parallel.tensor.plan import How, Plan, Rule, build_plan
from drumline.parallel.tensor.shares import Share, even_spans

__all__ = [
    "ChannelConv2d",
    "ColumnLinear",
    "Engine",
    "Exchange",
    "HeadAttention",
    "How",
    "Plan",
    "RowLinear",
    "Rule",
    "Share",
    "ShareDropout",
    "SplitLayer",
    "apply_tensor_parallel",
    "build_plan",
    "enter_split",
    "even_spans",
    "gather_shares",
    "keep_share",
    "shares_of",
    "sum_partial",
]
