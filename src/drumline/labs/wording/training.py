"""Lab 1, the training loop: what its checks look at, and what is said about their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

TITLES: Mapping[str, Said] = MappingProxyType(
    {
        "train.gd": Said("every step of GD sees all samples", "GD 的每一步都看到全部样本"),
        "train.sgd": Said("SGD and Adam see a random batch", "SGD 与 Adam 每一步看到一个随机批次"),
    }
)

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "gd-is-sgd": Entry(
            expected=Said(
                "every step of GD sees all {samples} samples",
                "GD 的每一步都看到全部 {samples} 个样本",
            ),
            seen=Said(
                "a step saw {seen} of {samples} (batch_size was {batch})",
                "某一步只看到 {samples} 个中的 {seen} 个（batch_size 为 {batch}）",
            ),
            belief=Said(
                "“GD and SGD are different update rules.” The rule is the same, w ← w − η·g. What "
                "makes it gradient descent is that g is the gradient over ALL samples; over a "
                "batch of them it is SGD, whatever the class is called. If all samples do not fit "
                "into memory, add up gradients over chunks and step once.",
                "“GD 与 SGD 的区别在于更新公式。”公式是一样的：w ← w − η·g。之所以叫梯度下降，是因"
                "为 g 是对全部样本的梯度；若只对一个批次求梯度，无论类叫什么名字，都是 SGD。如果内"
                "存放不下全部样本，可以分块累加梯度，最后只走一步。",
            ),
            read=("optim/gd.py:GD.accumulate",),
            section=4,
        ),
        "sgd-is-gd": Entry(
            expected=Said(
                "every step of {name} sees {batch} samples", "{name} 的每一步看到 {batch} 个样本"
            ),
            seen=Said("every step saw all {samples}", "每一步都看到全部 {samples} 个"),
            belief=Said(
                "Without a draw there is nothing stochastic about it: it is GD, at the price of "
                "GD.",
                "没有随机抽取，就谈不上“随机”：这其实是 GD，代价也与 GD 一样。",
            ),
            read=("optim/sgd.py:SGD", "data/sampler.py:BatchSampler"),
            section=4,
        ),
        "batch-size": Entry(
            expected=Said("{batch} samples in every step", "每一步 {batch} 个样本"),
            seen=Said("{sizes}", "{sizes}"),
            belief=Said(
                "batch_size is the number of samples that one step sees, no more and no fewer.",
                "batch_size 就是一步所看到的样本数，不多也不少。",
            ),
            read=("data/sampler.py:BatchSampler",),
            section=4,
        ),
        "same-batch": Entry(
            expected=Said("other samples in each step", "每一步看到不同的样本"),
            seen=Said("the same ones in all {steps} steps", "{steps} 步看到的样本完全相同"),
            belief=Said(
                "The draw must happen inside the loop. Drawn once, or with a seed that is set anew "
                "in each step, it is training on one batch.",
                "抽取必须发生在循环之内。只抽一次，或每一步都重新设定同一个种子，就只是在一个批次"
                "上训练。",
            ),
            read=("data/sampler.py:BatchSampler",),
            section=4,
        ),
        "not-random": Entry(
            expected=Said("samples drawn at random", "随机抽取样本"),
            seen=Said("the samples one after the other, as they lie", "按存放顺序依次取样本"),
            belief=Said(
                "Data often lie sorted, by label or by time; a batch of neighbours then says "
                "nothing of the whole. Shuffle anew for each epoch, or draw for each step.",
                "数据常常按标签或时间排列；相邻样本组成的批次不能代表整体。请每轮重新打乱，或每步"
                "随机抽取。",
            ),
            read=("data/partition.py:permutation",),
            section=4,
        ),
        "step-count": Entry(
            expected=Said("{expected} calls of step()", "调用 step() {expected} 次"),
            seen=Said("{seen} with {name}", "{name} 调用了 {seen} 次"),
            belief=Said(
                "A step is one change of the weights: one call of optimizer.step(), also where the "
                "gradient was added up over several chunks.",
                "一步就是权重的一次改变：只调用一次 optimizer.step()，即使梯度是分块累加得到的。",
            ),
            read=("optim/gd.py:GD.accumulate",),
            section=4,
        ),
        "gradients-pile-up": Entry(
            expected=Said(
                "each step of {name} uses the gradient of its own samples",
                "{name} 的每一步只使用本步样本的梯度",
            ),
            seen=Said(
                "exactly the weights that come out where gradients of all earlier steps add up",
                "与“历次梯度不断累加”得到的权重完全相同",
            ),
            belief=Said(
                "“backward computes .grad.” It ADDS to .grad. Call optimizer.zero_grad() before "
                "each step's first backward.",
                "“backward 计算 .grad。”它其实是累加到 .grad 上。请在每一步的第一次反向传播之前调"
                "用 optimizer.zero_grad()。",
            ),
            read=("optim/gd.py:GD.accumulate",),
            section=4,
        ),
        "step-without-gradient": Entry(
            expected=Said(
                "every step of {name} moves by a gradient of its own samples",
                "{name} 的每一步都按本步样本的梯度移动",
            ),
            seen=Said(
                "at call {step} of step() there was no gradient",
                "第 {step} 次调用 step() 时，还没有梯度",
            ),
            belief=Said(
                "“The loss is computed, so the step knows it.” A step sees nothing but .grad, and "
                "only backward fills it. The order is zero_grad(), forward, backward(), step(); "
                "zero_grad() between the last two throws away what backward has brought.",
                "“损失算出来了，step 自然知道。”step 只看 .grad，而只有 backward 会填充它。顺序是 "
                "zero_grad()、前向、backward()、step()；"
                "若在后两者之间调用 zero_grad()，backward 带来"
                "的梯度就被丢弃了。",
            ),
            read=("optim/gd.py:GD.accumulate",),
            section=4,
        ),
        "losses-not-returned": Entry(
            expected=Said(
                "train returns a list with the losses of its {steps} steps",
                "train 返回 {steps} 步的损失组成的列表",
            ),
            seen=Said("{given}", "{given}"),
            belief=Said(
                "A curve needs the loss of each step: append loss.item() in the loop (the number; "
                "a tensor would keep the whole graph of its step alive), and return the list.",
                "画曲线需要每一步的损失：在循环中追加 loss.item()（数值；"
                "若保存张量，会把该步的整个计"
                "算图留在内存里），最后返回这个列表。",
            ),
            read=("optim/gd.py:GD.accumulate",),
            section=4,
        ),
        "gradient-differs": Entry(
            expected=Said(
                "the weights that the mean loss of each step's samples leads to ({name})",
                "按每一步样本的平均损失得到的权重（{name}）",
            ),
            seen=Said("others (table)", "得到了别的权重（见表）"),
            belief=Said(
                "The right samples were seen, but their gradients were not averaged as they "
                "should: a sum instead of a mean, or a mean of chunks' means where the chunks are "
                "unequal, or a second loss that was added.",
                "样本是对的，但梯度没有正确平均：用了和而不是平均，或在各块大小不同时取了“块平均的"
                "平均”，或多加了别的损失。",
            ),
            read=("optim/gd.py:GD.accumulate",),
            section=4,
        ),
    }
)
