"""Lab 3: what its checks look at, and what is said about their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

TITLES: Mapping[str, Said] = MappingProxyType(
    {
        "partition.parts": Said(
            "random partition: every sample has one rank", "随机划分：每个样本恰属一个 rank"
        ),
        "partition.epochs": Said(
            "random partition: a new order each epoch", "随机划分：每轮顺序不同"
        ),
        "partition.len": Said("random partition: its length", "随机划分：长度"),
        "sampling.draws": Said(
            "random sampling: each rank draws its own, from all",
            "随机采样：各 rank 独立地从全体抽取",
        ),
        "sampling.epochs": Said("random sampling: new draws each epoch", "随机采样：每轮重新抽取"),
        "sampling.len": Said("random sampling: its length", "随机采样：长度"),
        "broadcast": Said("all ranks begin with one model", "所有 rank 从同一个模型开始"),
    }
)

_PARTS = Said(
    "{samples} samples dealt out to {ranks} ranks, each to exactly one",
    "{samples} 个样本分给 {ranks} 个 rank，每个样本恰好属于一个",
)

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "partition-overlap": Entry(
            expected=_PARTS,
            seen=Said(
                "{twice} indices too many: ranks have samples in common (epoch {epoch}; parts of "
                "{counts})",
                "多出 {twice} 个下标：不同 rank 有相同的样本（第 {epoch} 轮；各份大小 {counts}）",
            ),
            belief=Said(
                "“A shuffle on every rank is the same shuffle.” Each rank is a process of its "
                "own, with random numbers of its own: they cut the SAME order only if it comes "
                "from the same seed (and epoch), by a generator made for it. Or the cut itself "
                "overlaps: rank r takes order[r::n], or its slice of the order; nothing is filled "
                "up with samples that others have.",
                "“每个 rank 上打乱的结果都一样。”每个 rank 是独立进程，有自己的随机数：只有用同一"
                "个种子（和轮次）专门构造的生成器，大家切分的才是同一个顺序。也可能切分本身就有重"
                "叠：rank r 取 order[r::n]，或取属于它的一段；不要用别人的样本来补齐。",
            ),
            read=("data/partition.py:partition", "data/partition.py:cut"),
            section=2,
        ),
        "partition-coverage": Entry(
            expected=_PARTS,
            seen=Said(
                "{missing} of {samples} samples belong to nobody (epoch {epoch}; parts of "
                "{counts})",
                "{samples} 个样本中有 {missing} 个不属于任何 rank（第 {epoch} 轮；各份大小 "
                "{counts}）",
            ),
            belief=Said(
                "“n // ranks samples each, and done.” Where that does not come out even, the last "
                "ones fall between the ranks, and are never trained on. Round the running total, "
                "not each part; or take order[rank::ranks].",
                "“每个 rank 分 n // ranks 个就行。”除不尽时，最后几个样本会被漏掉，永远不参与"
                "训练。应当对累计值取整，而不是对每一份取整；或者取 order[rank::ranks]。",
            ),
            read=("data/partition.py:cut", "data/coverage.py:coverage"),
            section=2,
        ),
        "partition-unequal": Entry(
            expected=Said("parts that differ by one sample at most", "各份最多相差一个样本"),
            seen=Said("parts of {counts}", "各份大小为 {counts}"),
            belief=Said(
                "A rank with more samples takes more steps than the others, which wait for it, or "
                "hang in a collective that nobody else calls any more.",
                "样本多的 rank 步数也多，其他 rank 要么等它，要么它会卡在别人不再调用的集合通信"
                "里。",
            ),
            read=("data/partition.py:cut",),
            section=2,
        ),
        "partition-not-random": Entry(
            expected=Said("samples dealt out at random", "样本随机分配"),
            seen=Said(
                "parts that are cut from the data as they lie (picture)",
                "各份是按数据原来的顺序切出的（见图）",
            ),
            belief=Said(
                "Data often lie sorted by label; parts cut from them as they lie are then of one "
                "label each, and batches, too. Shuffle with a seeded generator first.",
                "数据常按标签排列；按原顺序切分会让每一份、每个批次都只有一种标签。请先用带种子的"
                "生成器打乱。",
            ),
            read=("data/partition.py:partition",),
            section=2,
        ),
        "same-order": Entry(
            expected=Said(
                "{name} gives other indices, or another order, in each epoch",
                "{name} 在每一轮给出不同的下标或不同的顺序",
            ),
            seen=Said(
                "the same ones in the same order in epochs 0, 1 and 2 (rank {rank})",
                "第 0、1、2 轮的下标与顺序完全相同（rank {rank}）",
            ),
            belief=Said(
                "“Shuffled is shuffled.” Shuffled once, every epoch shows the same batches in the "
                "same order. The epoch has to be part of the seed, and set_epoch has to reach it: "
                "a permutation made in __init__ never sees it.",
                "“打乱过就行了。”只打乱一次，每一轮都是同样的批次、同样的顺序。轮次必须成为种子的"
                "一部分，而且 set_epoch 要能影响到它：在 __init__ 里生成的排列永远看不到轮次。",
            ),
            read=("data/sampler.py:PartitionSampler", "data/partition.py:reorder"),
            section=2,
        ),
        "epoch-not-repeatable": Entry(
            expected=Said(
                "{name} gives the same again for the same seed and epoch",
                "对相同的种子和轮次，{name} 给出相同的结果",
            ),
            seen=Said(
                "epoch 1 came out otherwise when it was asked for again (rank {rank})",
                "再次取第 1 轮时结果不同（rank {rank}）",
            ),
            belief=Said(
                "“Random is random.” What is drawn must follow from seed, epoch and rank alone: "
                "otherwise a run cannot be repeated, nor resumed in the middle, and ranks do not "
                "agree on who has what.",
                "“随机就是随机。”抽取的结果必须只由种子、轮次和 rank 决定：否则实验不能重复，不能"
                "中途恢复，各 rank 对谁拥有哪些样本也无法一致。",
            ),
            read=("data/partition.py:permutation", "data/partition.py:draw"),
            section=2,
        ),
        "wrong-len": Entry(
            expected=Said(
                "len() of {name} is the number of indices that come: {counted} on rank 0",
                "{name} 的 len() 等于给出的下标个数：rank 0 上是 {counted}",
            ),
            seen=Said("{told} (the data set has {samples})", "{told}（数据集有 {samples} 个样本）"),
            belief=Said(
                "“The length is that of the data set.” It is that of THIS rank's share. DataLoader "
                "computes the number of batches from it, and schedules and progress with that.",
                "“长度就是数据集的长度。”它应是本 rank 那一份的长度。DataLoader 由它计算批次数，学"
                "习率调度和进度也由此而来。",
            ),
            read=("data/sampler.py:PartitionSampler",),
            section=2,
        ),
        "index-range": Entry(
            expected=Said("indices from 0 to {last}", "下标从 0 到 {last}"),
            seen=Said("{got} from {name} on rank {rank}", "rank {rank} 上 {name} 给出 {got}"),
            belief=Said(
                "A sampler gives indices into the data set, as int, and at least one to each rank.",
                "采样器给出的是数据集的整数下标，每个 rank 至少一个。",
            ),
            read=("data/sampler.py:PartitionSampler",),
            section=2,
        ),
        "sampling-count": Entry(
            expected=Said(
                "each of {ranks} ranks draws its share, {low} or {high} of {samples}",
                "{ranks} 个 rank 各抽取自己的一份：{samples} 个中的 {low} 或 {high} 个",
            ),
            seen=Said("{counts}", "{counts}"),
            belief=Said(
                "An epoch shows as many samples as there are, on all ranks together. Where each "
                "rank draws as many as there are, it does the work of the whole, and nothing is "
                "faster.",
                "一轮中所有 rank 合起来看到的样本数等于数据集大小。如果每个 rank 都抽取那么多，它"
                "就做了全部的工作，并行毫无加速。",
            ),
            read=("data/partition.py:draw",),
            section=3,
        ),
        "sampling-same-draws": Entry(
            expected=Said("each rank draws its own samples", "每个 rank 独立抽取样本"),
            seen=Said(
                "ranks {same} draw the same; all {ranks} together see {distinct} of {samples}",
                "rank {same} 抽到的完全相同；{ranks} 个 rank 合起来只看到 {samples} 个中的 "
                "{distinct} 个",
            ),
            belief=Said(
                "“The same seed everywhere, as always.” Here the draws must DIFFER by rank. With "
                "the same ones every rank computes the same gradient, and its average is that "
                "gradient: {ranks} processes for the work of one. Put the rank into the seed.",
                "“种子照例处处相同。”这里恰恰要求各 rank 不同。抽到相同的样本，各 rank 就算出相同"
                "的梯度，平均之后还是它：{ranks} 个进程只做了一个进程的事。请让 rank 成为种子的一"
                "部分。",
            ),
            read=("data/partition.py:draw", "data/coverage.py:coverage"),
            section=3,
        ),
        "sampling-narrow": Entry(
            expected=Said(
                "every rank can draw every sample: after {epochs} epochs it has seen nearly all "
                "{samples}",
                "每个 rank 都可能抽到任何样本：{epochs} 轮之后应几乎看遍 {samples} 个",
            ),
            seen=Said("rank {rank} has only ever seen {ever}", "rank {rank} 始终只见过 {ever} 个"),
            belief=Said(
                "“Random sampling is a random part.” A draw from a fixed part is a partition with "
                "repeats: most of the data is never seen by this rank. Draw from 0 … n − 1.",
                "“随机采样就是取随机的一部分。”从固定的一部分里抽取，只是带重复的划分：大部分数据"
                "这个 rank 永远看不到。请从 0 … n − 1 中抽取。",
            ),
            read=("data/partition.py:draw", "data/coverage.py:coverage"),
            section=3,
        ),
        "parameters-not-broadcast": Entry(
            expected=Said(
                "after broadcast_parameters all {ranks} ranks have rank 0's parameters",
                "broadcast_parameters 之后，{ranks} 个 rank 都持有 rank 0 的参数",
            ),
            seen=Said(
                "{count} tensors differ: {off} (fingerprints in the table)",
                "{count} 个张量不同：{off}（表中为指纹值）",
            ),
            belief=Said(
                "“Averaged gradients keep the models equal.” They keep the DIFFERENCE equal: "
                "models that begin apart stay apart for ever, and their average is no model at "
                "all. And dist.broadcast fills the tensor that it is given: a clone that is "
                "thrown away changes nothing.",
                "“梯度平均了，模型自然一致。”平均只保持差距不变：一开始不同的模型永远不同，它们的"
                "平均也毫无意义。另外 dist.broadcast 填充的是传给它的那个张量：传一个随后丢弃的 "
                "clone，什么也不会改变。",
            ),
            read=("parallel/data_parallel.py:broadcast_state", "parallel/data_parallel.py"),
            section=4,
        ),
        "buffers-not-broadcast": Entry(
            expected=Said(
                "all {ranks} ranks have rank 0's buffers, too",
                "{ranks} 个 rank 也都持有 rank 0 的缓冲区",
            ),
            seen=Said("these differ: {off}", "以下不同：{off}"),
            belief=Said(
                "“A model is its parameters.” Batch norm's running mean is a buffer, not a "
                "parameter: model.parameters() does not have it, model.state_dict() does.",
                "“模型就是它的参数。”批归一化的滑动均值是缓冲区而不是参数：model.parameters() 里没"
                "有它，model.state_dict() 里有。",
            ),
            read=("parallel/data_parallel.py:broadcast_state",),
            section=4,
        ),
    }
)
