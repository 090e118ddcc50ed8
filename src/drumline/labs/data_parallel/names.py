"""What the ways of dealing out data are called on the page, and what each does."""

from __future__ import annotations

from drumline.labs.data_parallel.cases import ALPHA, Plan, label_groups
from drumline.report.page.style import FigureStyle
from drumline.report.page.translator import Translator

_NAMES = {
    "shuffle": ("shuffle", "全局打乱"),
    "random": ("random partition", "随机划分"),
    "sampling": ("random sampling", "随机采样"),
    "by_label": ("by label", "按标签划分"),
    "dirichlet": (f"Dirichlet (α = {ALPHA:g})", f"狄利克雷划分（α = {ALPHA:g}）"),
}


def kind_name(say: Translator | FigureStyle, kind: str) -> str:
    """Return the name of a way of dealing out data."""
    names = _NAMES[kind]
    return say.pick(*names) if isinstance(say, Translator) else say.say(*names)


def kind_names(say: Translator) -> dict[str, str]:
    """Return the names of all of them, for columns of tables."""
    return {kind: say.pick(*names) for kind, names in _NAMES.items()}


def kinds_explained(say: Translator, of: Plan) -> list[tuple[str, str]]:
    """Tell what each way does, as names with explanations."""
    groups = " / ".join("".join(map(str, labels)) for labels in label_groups(of.ranks))
    meanings = {
        "shuffle": (
            "each epoch one new order of all samples, cut into batches that the ranks share",
            "每轮把全部样本重新打乱，切成批次，由各进程分担",
        ),
        "random": (
            "one random order, cut into a part for each rank, which keeps it",
            "一次性随机打乱并切分，各进程始终使用自己的那一份",
        ),
        "sampling": (
            "each rank draws its samples at random with replacement",
            "各进程独立地有放回随机抽样",
        ),
        "by_label": (
            f"each rank owns some digits: {groups}",
            f"每个进程只拥有一部分数字：{groups}",
        ),
        "dirichlet": (
            "each digit is dealt out by shares drawn from a Dirichlet distribution: skewed labels, "
            "unequal parts",
            "每个数字按狄利克雷分布抽取的比例分给各进程：标签倾斜，各份大小不等",
        ),
    }
    return [(kind_name(say, kind), say.pick(*both)) for kind, both in meanings.items()]
