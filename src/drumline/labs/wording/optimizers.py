"""Lab 1: what its checks look at, and what is said about their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

TITLES: Mapping[str, Said] = MappingProxyType(
    {
        "gd.step": Said("GD moves against the gradient", "GD 沿负梯度方向移动"),
        "sgd.step": Said("SGD moves, and gathers momentum", "SGD 移动并累积动量"),
        "adam.step": Said("Adam corrects its running means", "Adam 对滑动平均做偏差修正"),
        "optimizers.without-gradient": Said(
            "a parameter without gradient stays", "没有梯度的参数保持不变"
        ),
        "train.gd": Said("every step of GD sees all samples", "GD 的每一步都看到全部样本"),
        "train.sgd": Said("SGD and Adam see a random batch", "SGD 与 Adam 每一步看到一个随机批次"),
    }
)

_ADAM_FIRST = Said(
    "Adam's weights, step by step: t counts 1, 2, 3, … and m and v are divided by 1 − β₁ᵗ and 1 − "
    "β₂ᵗ",
    "与 Adam 逐步一致的权重：t 依次为 1、2、3……，m 与 v 分别除以 1 − β₁ᵗ 与 1 − β₂ᵗ",
)

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "step-differs": Entry(
            expected=Said("w ← w − {lr:g}·g in every step", "每一步都是 w ← w − {lr:g}·g"),
            seen=Said(
                "with g = {gradient:.4f} the first weight of {name} went from 0 to {moved:.4f}",
                "当 g = {gradient:.4f} 时，{name} 的第一个权重从 0 变为 {moved:.4f}",
            ),
            belief=Said(
                "The gradient points uphill, so the step goes the other way; the learning rate "
                "multiplies it once; and the parameter itself must change, in place (`param -= "
                "…`), not a new tensor by the same name (`param = param - …`).",
                "梯度指向上坡方向，所以要反向移动；学习率只乘一次；必须就地修改参数本身"
                "（`param -= …`），而不是产生一个同名的新张量（`param = param - …`）。",
            ),
            read=("optim/gd.py:GD.update",),
            section=2,
        ),
        "momentum-ignored": Entry(
            expected=Said(
                "with momentum={momentum:g} the buffer b ← {momentum:g}·b + g, and w moves by b",
                "当 momentum={momentum:g} 时，缓冲区 b ← {momentum:g}·b + g，w 按 b 移动",
            ),
            seen=Said("the same weights as without momentum", "权重与没有动量时完全相同"),
            belief=Said(
                "Momentum is a memory: b must outlive the step. A buffer that is made anew in "
                "every step is always the gradient alone.",
                "动量是一种记忆：b 必须保留到下一步。如果每步都新建缓冲区，它永远只等于当前梯度。",
            ),
            read=("optim/sgd.py:SGD._gather_speed",),
            section=2,
        ),
        "momentum-differs": Entry(
            expected=Said(
                "b ← {momentum:g}·b + g for each parameter, b ← g in the first step, w ← w − lr·b",
                "对每个参数 b ← {momentum:g}·b + g，第一步 b ← g，然后 w ← w − lr·b",
            ),
            seen=Said(
                "parameter {parameter} goes elsewhere (table)", "参数 {parameter} 更新有误（见表）"
            ),
            belief=Said(
                "The usual ones: one buffer for all parameters instead of one for each; (1 − μ)·g "
                "in place of g (that is a running mean, as in Adam); μ on the wrong term; the "
                "buffer and the gradient being one tensor, so that the next backward overwrites "
                "it (clone it).",
                "常见原因：所有参数共用一个缓冲区，而不是每个参数一个；用 (1 − μ)·g 代替 g（那是 "
                "Adam 式的滑动平均）；μ 乘错了项；缓冲区与梯度是同一个张量，下一次反向传播会覆盖它"
                "（应当 clone）。",
            ),
            read=("optim/sgd.py:SGD.update", "optim/sgd.py:SGD._gather_speed"),
            section=2,
        ),
        "adam-bias-correction": Entry(
            expected=_ADAM_FIRST,
            seen=Said(
                "exactly the weights of an Adam that does not correct {missing}",
                "与不修正 {missing} 的 Adam 得到的权重完全相同",
            ),
            belief=Said(
                "“A running mean is a mean from the start.” It is not: m and v begin at 0, so "
                "after t steps they hold only the share 1 − βᵗ of a mean. Without the correction "
                "v is far too small for about 1/(1 − β₂) steps, and the first steps have the "
                "wrong length.",
                "“滑动平均从一开始就是平均值。”并非如此：m 与 v 从 0 开始，t 步之后只含有平均值的 "
                "1 − βᵗ 那一部分。不修正的话，v 在大约 1/(1 − β₂) 步之内都过小，最初几步的步长"
                "就是错的。",
            ),
            read=("optim/adam.py:Adam.update",),
            section=3,
        ),
        "adam-step-counter": Entry(
            expected=_ADAM_FIRST,
            seen=Said(
                "exactly the weights of an Adam with {formula}; in the first step its three "
                "parameters are corrected with t = {counts}",
                "与取 {formula} 的 Adam 得到的权重完全相同；第一步中三个参数分别用 t = {counts} 修"
                "正",
            ),
            belief=Said(
                "“t is whatever counter is at hand.” t is how many steps a parameter has taken: "
                "it grows by one in each step, is the same for all parameters, and begins at 1 "
                "(with t = 0 the correction divides by 0). The loop's index over the parameters "
                "says which parameter it is, not which step; and a counter that is raised inside "
                "that loop grows once for each parameter.",
                "“t 就是手边随便一个计数器。”t 是参数已经走过的步数：每一步加一，对所有参数相同，"
                "从 1 开始（t = 0 时修正会除以 0）。遍历参数的循环下标说明是哪一个参数，而不是第几"
                "步；在该循环内部自增的计数器，则每个参数都会加一次。",
            ),
            read=("optim/adam.py:Adam.update", "optim/adam.py:Adam._state_of"),
            section=3,
        ),
        "adam-counts-from-0": Entry(
            expected=_ADAM_FIRST,
            seen=Said(
                "{seen}: a correction that divides by 0, as 1 − β⁰ is",
                "{seen}：修正时除以了 0，因为 1 − β⁰ 等于 0",
            ),
            belief=Said(
                "“Counting starts at 0.” t is the number of the step that is being taken, so it "
                "is 1 in the first one: raise it before it is used. And it is the same for all "
                "parameters: the index in the loop over them, which is 0 for the first, is no "
                "count of steps.",
                "“计数从 0 开始。”t 是正在走的这一步的序号，第一步就是 1：要先加一再使用。而且它对"
                "所有参数相同：遍历参数的循环下标（第一个参数是 0）不是步数。",
            ),
            read=("optim/adam.py:Adam.update",),
            section=3,
        ),
        "adam-formula": Entry(
            expected=_ADAM_FIRST,
            seen=Said(
                "exactly the weights of an Adam with {formula}",
                "与写成 {formula} 的 Adam 得到的权重完全相同",
            ),
            belief=Said(
                "The denominator is √v̂ + ε, with ε as it is and outside the root; v is a mean of "
                "squares g·g, element by element; and the corrections hold a power, βᵗ.",
                "分母是 √v̂ + ε，ε 不变且在根号之外；v 是逐元素平方 g·g 的滑动平均；修正项中是幂 "
                "βᵗ。",
            ),
            read=("optim/adam.py:Adam.update",),
            section=3,
        ),
        "adam-differs": Entry(
            expected=_ADAM_FIRST,
            seen=Said(
                "weights that differ from step {step} on (table); none of the usual mistakes gives "
                "these",
                "从第 {step} 步起权重不同（见表）；常见错误都得不到这些数值",
            ),
            belief=Said(
                "Compute one step of one weight by hand and print m, v, m̂, v̂ beside it. The "
                "usual suspects: β₁ and β₂ exchanged, one m for all parameters, m̂ written back "
                "into m.",
                "请手算一个权重的一步，并把 m、v、m̂、v̂ 打印出来对照。常见疑点：β₁ 与 β₂ 互换、"
                "所有参数共用一个 m、把 m̂ 写回了 m。",
            ),
            read=("optim/adam.py:Adam.update",),
            section=3,
        ),
        "no-gradient": Entry(
            expected=Said(
                "{name} leaves a parameter alone whose .grad is None",
                "{name} 不改动 .grad 为 None 的参数",
            ),
            seen=Said("{what}", "{what}"),
            belief=Said(
                "“After backward every parameter has a gradient.” One that took no part in the "
                "loss, or that is frozen, has None: skip it.",
                "“反向传播之后每个参数都有梯度。”没有参与损失计算或被冻结的参数，其梯度是 None："
                "跳过它。",
            ),
            read=("optim/foreach.py:ForeachOptimizer",),
            section=2,
        ),
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
