"""A mistake to look at: one rank makes another call than the rest.

Both kinds are what people really write. `root=rank`, where a rank takes itself for the root; and a
rank that is in another branch of the program and calls another collective. Sizes agree, so that
nothing is refused on the way: the ranks just wait.
"""

from __future__ import annotations

from dataclasses import replace

from drumline.core.schedule import ROOTED, Call


def make_mistake(call: Call) -> tuple[int, Call]:
    """Return the rank that is off, and the call that it makes.

    With a root it is the rank before it, which no other rank waits to receive anything else from;
    without, the last rank.
    """
    if call.collective in ROOTED:
        odd = (call.root - 1) % call.ranks
        return odd, replace(call, root=odd)
    elements = max(1, call.elements)
    other = replace(call, collective="broadcast", algorithm="linear", root=0, elements=elements)
    return call.ranks - 1, other
