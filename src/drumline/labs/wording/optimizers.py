"""Lab 1, the optimizers: what their checks look at, and what is said about their mistakes."""

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
                "squares g·g, element by element; and the corrections divide, by 1 less a power: "
                "m by 1 − β₁ᵗ, v by 1 − β₂ᵗ.",
                "分母是 √v̂ + ε，ε 不变且在根号之外；v 是逐元素平方 g·g 的滑动平均；"
                "修正是除法，除以 1 "
                "减去一个幂：m 除以 1 − β₁ᵗ，v 除以 1 − β₂ᵗ。",
            ),
            read=("optim/adam.py:Adam.update",),
            section=3,
        ),
        "adam-correction-kept": Entry(
            expected=_ADAM_FIRST,
            seen=Said(
                "exactly the weights of an Adam that writes the corrected values back into {kept}",
                "与把修正后的值写回 {kept} 的 Adam 得到的权重完全相同",
            ),
            belief=Said(
                "“A value that was corrected is better from then on.” The next step corrects it "
                "again, for the same steps, and the error grows. m and v stay as they are; m̂ and v̂ "
                "are made from them in each step, and used in that one alone.",
                "“修正过的值以后就更准确。”下一步会为同样的步数再修正一次，"
                "误差越积越大。m 与 v 要保"
                "持原样；m̂ 与 v̂ 每一步由它们算出，只在这一步使用。",
            ),
            read=("optim/adam.py:Adam.update",),
            section=3,
        ),
        "state-shared": Entry(
            expected=Said(
                "a second {name} begins anew, with nothing of what the first one has gathered",
                "第二个 {name} 从头开始，与第一个积累的内容无关",
            ),
            seen=Said(
                "the first {name} walked as it should, the second, made after it, goes elsewhere "
                "(table)",
                "第一个 {name} 的轨迹正确，随后创建的第二个走向别处（见表）",
            ),
            belief=Said(
                "“A name in the class body belongs to the object.” It belongs to the class, and so "
                "to all optimizers of it: a counter or a buffer there goes on where the last one "
                "stopped. The same goes for globals, and for a list or dictionary as a default "
                "argument. Make them in __init__, as self.….",
                "“写在类体里的名字属于对象。”它属于类，因而为该类的所有优化器共有：计数器或缓冲会从上"
                "一个停下的地方继续。全局变量，以及用列表或字典作默认参数也是如此。请在 "
                "__init__ 里用 self.… 创建。",
            ),
            read=("optim/adam.py:Adam._state_of", "optim/sgd.py:SGD._gather_speed"),
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
                "usual suspects: β₁ and β₂ exchanged, one m for all parameters.",
                "请手算一个权重的一步，并把 m、v、m̂、v̂ 打印出来对照。常见疑点：β₁ 与 β₂ 互换、"
                "所有参数共用一个 m。",
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
    }
)
