"""Who sends how much to whom, round by round: each algorithm of `drumline.comm`, on paper.

From a schedule come the messages and bytes of each rank and the predicted time
(`drumline.schedules.cost`). The algorithms themselves, which move real tensors, are tested against
it message by message.

    n = 4, all_reduce by chunked_ring, pieces of s bytes          0 → 1  1 → 2  2 → 3  3 → 0
      rounds 1 … 3   reduce-scatter: everybody sends a piece      s      s      s      s
      rounds 4 … 6   all-gather: the same again                   s      s      s      s
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from types import MappingProxyType

from drumline.core.errors import UsageError
from drumline.core.formatting import nearest
from drumline.schedules.rounds import (
    PlannedMessage,
    Rounds,
    chain,
    chain_segment_bytes,
    cut,
    dissemination,
    even,
    pairwise,
    rename,
    reverse,
    round_ring,
    star,
    tree,
    up_and_down,
)

NATIVE = "native"
"""as an algorithm: the backend's own collective"""
COMPOSED = ("reduce_broadcast", "gather_scatter", "all_gather")
"""as algorithms of all_reduce: the same sum out of other collectives of the backend"""
BY_BACKEND = (NATIVE, *COMPOSED)
"""algorithms whose messages only the backend knows"""
FLOAT32_BYTES = 4
IN_PARTS = frozenset({"scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"})
"""collectives in which each rank has a part of its own; all parts are of one size"""
ROOTED = frozenset({"broadcast", "reduce", "scatter", "gather"})
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "broadcast": "tree",
        "reduce": "tree",
        "scatter": "tree",
        "gather": "tree",
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_reduce": "chunked_ring",
        "all_to_all": "ring",
        "barrier": "dissemination",
    }
)
"""the algorithm of each collective where none is named"""


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """One call of a collective, as all ranks make it."""

    collective: str
    algorithm: str
    ranks: int
    elements: int = 0
    """of the whole: what nccl-tests calls the size, which for collectives in parts is that of all
    parts together; what does not divide by the ranks is left out there"""
    element_bytes: int = 4
    root: int = 0
    ranks_per_node: int | None = None

    @property
    def part(self) -> int:
        """The elements of one rank's part."""
        return self.elements // self.ranks

    @property
    def nbytes(self) -> int:
        """The size as nccl-tests counts it; a barrier has none."""
        if self.collective == "barrier":
            return 0
        whole = self.part * self.ranks if self.collective in IN_PARTS else self.elements
        return whole * self.element_bytes


def whole_elements(collective: str, ranks: int, nbytes: int, element_bytes: int) -> int:
    """Return a collective's elements from its bytes: rounded up to whole, equal parts."""
    if collective == "barrier":
        return 0
    parts = ranks if collective in IN_PARTS else 1
    return -(-nbytes // (parts * element_bytes)) * parts


def plan(call: CollectiveCall) -> Rounds:
    """Return the schedule of a collective, its rounds; empty messages are not sent or listed."""
    rounds = PLANS[call.collective][find_algorithm_name(call.collective, call.algorithm)](call)
    unit = 1 if call.collective == "barrier" else call.element_bytes
    sized = [[message._replace(size=message.size * unit) for message in now] for now in rounds]
    return [now for now in ([m for m in now if m.size] for now in sized) if now]


def find_algorithm_name(collective: str, name: str | None = None) -> str:
    """Return the name of a collective's algorithm (None: the default); a UsageError names all."""
    known = PLANS[_known(collective, PLANS, "collective")]
    return _known(name or DEFAULTS[collective], known, f"{collective} algorithm")


def _known(name: str, among: Collection[str], what: str) -> str:
    if name in among:
        return name
    hint = nearest(name, among, "name one of them")
    raise UsageError(f"no {what} {name!r} among {', '.join(among)}; {hint}")


def _chunked_ring(n: int, call: CollectiveCall) -> Rounds:
    sizes = even(call.elements, n)
    scatter = round_ring(sizes, call.element_bytes, ahead=1)
    return scatter + round_ring(sizes, call.element_bytes, ahead=0)


class _Halving:
    """Recursive halving and doubling among the 2^k ranks that play, and the pairs beside them."""

    def __init__(self, call: CollectiveCall) -> None:
        self.size = 1 << call.ranks.bit_length() - 1
        self.pairs = call.ranks - self.size
        self.call = call

    def place(self, player: int) -> int:
        """Return the rank of a player."""
        return 2 * player + 1 if player < self.pairs else player + self.pairs

    def inwards(self, size: int) -> Rounds:
        """The even rank of each pair hands something to the odd one, which plays for both."""
        return [[PlannedMessage(2 * k, 2 * k + 1, size) for k in range(self.pairs)]]

    def double(self, pieces: Sequence[int]) -> Rounds:
        """All-gather: each exchanges all it has with ever farther partners."""
        bounds = [0, *accumulate(pieces)]
        rounds, have = [], 1
        while have < self.size:
            starts = [player // have * have for player in range(self.size)]
            sizes = [bounds[start + have] - bounds[start] for start in starts]
            rounds.append(
                [
                    PlannedMessage(self.place(player), self.place(player ^ have), size)
                    for player, size in enumerate(sizes)
                ]
            )
            have *= 2
        return rounds

    def joined(self) -> list[int]:
        """One piece per player, where each rank has a part: a pair's two are one."""
        return [2 * self.call.part] * self.pairs + [self.call.part] * (self.size - self.pairs)

    def all_reduce(self) -> Rounds:
        """Halving, then doubling; the pairs hand in and get back everything."""
        sizes, whole = even(self.call.elements, self.size), self.inwards(self.call.elements)
        doubling = self.double(sizes)
        return whole + reverse(doubling) + doubling + reverse(whole)

    def reduce_scatter(self) -> Rounds:
        """Halving; the pairs hand in everything and get back their part."""
        halving = reverse(self.double(self.joined()))
        handed = self.inwards(self.call.part * self.call.ranks)
        return handed + halving + reverse(self.inwards(self.call.part))

    def all_gather(self) -> Rounds:
        """Doubling; the pairs hand in their part and get back everything."""
        back = reverse(self.inwards(self.call.part * self.call.ranks))
        return self.inwards(self.call.part) + self.double(self.joined()) + back


class _Levels:
    """Two-level algorithms: trees inside the nodes, something else between their leaders."""

    def __init__(self, call: CollectiveCall, root: int = 0) -> None:
        m, n = call.ranks_per_node or call.ranks, call.ranks
        self.call = replace(call, elements=1) if call.collective == "barrier" else call
        self.nodes = [range(start, min(start + m, n)) for start in range(0, n, m)]
        self.local = [root % m if root % m < len(node) else 0 for node in self.nodes]
        self.leaders = [node[lead] for node, lead in zip(self.nodes, self.local, strict=True)]
        self.root = root // m

    def inside(self) -> Rounds:
        """Down the trees of all nodes at once."""
        trees = [
            rename(tree(len(node), lead, lambda _: self.call.elements), node)
            for node, lead in zip(self.nodes, self.local, strict=True)
        ]
        return [[m for now in rounds for m in now] for rounds in zip_longest(*trees, fillvalue=())]

    def down(self) -> Rounds:
        """Down the tree of the leaders, then down those inside the nodes."""
        between = tree(len(self.leaders), self.root, lambda _: self.call.elements)
        return rename(between, self.leaders) + self.inside()

    def around(self, rounds: Rounds) -> Rounds:
        """Up inside the nodes, those rounds between the leaders, and down again."""
        return reverse(self.inside()) + rename(rounds, self.leaders) + self.inside()


def _segments(call: CollectiveCall) -> list[int]:
    nbytes = chain_segment_bytes(call.elements * call.element_bytes, call.ranks)
    return cut(call.elements, call.element_bytes, nbytes)


PLANS: Mapping[str, Mapping[str, Callable[[CollectiveCall], Rounds]]] = MappingProxyType(
    {
        "broadcast": {
            "linear": lambda c: star(c.ranks, c.root, c.elements),
            "tree": lambda c: tree(c.ranks, c.root, lambda _: c.elements),
            "ring": lambda c: chain(c.ranks, c.root, [c.elements]),
            "chunked_ring": lambda c: chain(c.ranks, c.root, _segments(c)),
            "hierarchical": lambda c: _Levels(c, c.root).down(),
        },
        "reduce": {
            "linear": lambda c: reverse(star(c.ranks, c.root, c.elements)),
            "tree": lambda c: reverse(tree(c.ranks, c.root, lambda _: c.elements)),
            "ring": lambda c: chain(c.ranks, c.root + 1, [c.elements]),
            "chunked_ring": lambda c: chain(c.ranks, c.root + 1, _segments(c)),
            "hierarchical": lambda c: reverse(_Levels(c, c.root).down()),
        },
        "scatter": {
            "linear": lambda c: star(c.ranks, c.root, c.part),
            "tree": lambda c: tree(c.ranks, c.root, lambda below: below * c.part),
        },
        "gather": {
            "linear": lambda c: reverse(star(c.ranks, c.root, c.part)),
            "tree": lambda c: reverse(tree(c.ranks, c.root, lambda below: below * c.part)),
        },
        "all_gather": {
            "linear": lambda c: pairwise(c.ranks, c.part),
            "ring": lambda c: round_ring([c.part] * c.ranks, c.element_bytes, ahead=0),
            "halving_doubling": lambda c: _Halving(c).all_gather(),
        },
        "reduce_scatter": {
            "linear": lambda c: pairwise(c.ranks, c.part),
            "ring": lambda c: round_ring([c.part] * c.ranks, c.element_bytes, ahead=1),
            "halving_doubling": lambda c: _Halving(c).reduce_scatter(),
        },
        "all_reduce": {
            "linear": lambda c: up_and_down(star(c.ranks, 0, c.elements)),
            "tree": lambda c: up_and_down(tree(c.ranks, 0, lambda _: c.elements)),
            "ring": lambda c: [
                [PlannedMessage(r, (r + 1) % c.ranks, c.elements) for r in range(c.ranks)]
                for _ in range(c.ranks - 1)
            ],
            "chunked_ring": lambda c: _chunked_ring(c.ranks, c),
            "halving_doubling": lambda c: _Halving(c).all_reduce(),
            "hierarchical": lambda c: _Levels(c).around(_chunked_ring(len(_Levels(c).leaders), c)),
        },
        "all_to_all": {
            "linear": lambda c: pairwise(c.ranks, c.part),
            "ring": lambda c: pairwise(c.ranks, c.part),
        },
        "barrier": {
            "linear": lambda c: up_and_down(star(c.ranks, 0, 1)),
            "tree": lambda c: up_and_down(tree(c.ranks, 0, lambda _: 1)),
            "dissemination": lambda c: dissemination(c.ranks),
            "hierarchical": lambda c: _Levels(c).around(dissemination(len(_Levels(c).leaders))),
        },
    }
)
"""the schedule of each algorithm; the same names as in `drumline.comm.ALGORITHMS`"""


def make_mistake(call: CollectiveCall) -> tuple[int, CollectiveCall]:
    """Return the rank that makes a mismatched call of a collective, and the call that it makes.

    Both kinds are what people really write: `root=rank`, where a rank takes itself for the root;
    and a rank in another branch of the program, which calls another collective. Sizes agree, so
    that nothing is refused on the way: the ranks deadlock.

    With a root it is the rank before it, which no other rank waits to receive anything else from;
    without, the last rank.
    """
    if call.collective in ROOTED:
        odd = (call.root - 1) % call.ranks
        return odd, replace(call, root=odd)
    elements = max(1, call.elements)
    other = replace(call, collective="broadcast", algorithm="linear", root=0, elements=elements)
    return call.ranks - 1, other
