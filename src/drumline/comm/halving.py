"""Recursive halving and doubling: partners at distance 1, 2, 4, … exchange ever larger parts.

    n = 8, all-gather by doubling                  reduce-scatter by halving is the same backwards
      (1) partner r^1: exchange 1 piece
      (2) partner r^2: exchange 2 pieces           0─1 2─3 4─5 6─7      (1)
      (3) partner r^4: exchange 4 pieces           └─┼─┘ │ └─┼─┘ │      (2)   … and so on

log2(n) rounds instead of the ring's n−1, and the same (n−1)/n·b bytes: the best of both for medium
sizes (Thakur, Rabenseifner & Gropp 2005). Where n is no power of two, the first ranks pair up: the
even one of each pair hands its part to the odd one, which plays for both, and gets the result back.
This costs b more bytes on those ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drumline.comm.channel import Channel
from drumline.comm.pieces import Pieces
from drumline.comm.reduce_op import Op


def all_reduce(channel: Channel, tensor: Tensor, op: Op) -> None:
    """All-reduce in place by recursive halving, then doubling (Rabenseifner's algorithm).

    Every rank calls this; it blocks until this rank holds the result. 2·log2(n) messages and
    2·(n−1)/n·b bytes per rank where n is a power of two. Memory: half a buffer. Each element is
    combined at one rank, so all ranks end with the same bits.
    """
    team = _Team(channel)
    team.collect(tensor, op)
    if team.plays:
        pieces = Pieces.even(tensor, team.size)
        _halve(channel, team, pieces, op)
        op.finish(pieces[team.rank], channel.size)
        _double(channel, team, pieces)
    team.hand_back(tensor)


def reduce_scatter(channel: Channel, pieces: Pieces, op: Op) -> None:
    """Reduce-scatter by recursive halving: combine everybody's piece k at rank k, in place.

    The other pieces hold parts of sums then. Every rank calls this; it blocks until its own piece
    is done. log2(n) messages and (n−1)/n·b bytes per rank where n is a power of two. Memory: half a
    buffer.
    """
    team = _Team(channel)
    team.collect(pieces.flat, op)
    if team.plays:
        _halve(channel, team, team.joined(pieces), op)
    team.hand_back(pieces[team.even])
    op.finish(pieces[channel.rank], channel.size)


def all_gather(channel: Channel, pieces: Pieces) -> None:
    """All-gather by recursive doubling: fill in the others' pieces; each rank brings its own.

    Every rank calls this; it blocks until all pieces are here. log2(n) messages and (n−1) pieces
    per rank where n is a power of two.
    """
    team = _Team(channel)
    team.bring(pieces)
    if team.plays:
        _double(channel, team, team.joined(pieces))
    team.hand_back(pieces.flat)


def _halve(channel: Channel, team: _Team, pieces: Pieces, op: Op) -> None:
    """Send the half that is the partner's, fold in what comes for one's own; again with less."""
    inbox = torch.empty_like(pieces.flat)
    first, end = 0, team.size
    while end - first > 1:
        middle = (first + end) // 2
        low, high = (first, middle), (middle, end)
        own, other = (low, high) if team.rank < middle else (high, low)
        partner = team.place_of(team.rank ^ (middle - first))
        kept = pieces.span(*own)
        room = inbox[: kept.numel()]
        channel.exchange(pieces.span(*other), partner, room, partner)
        op.combine(kept, room)
        first, end = own


def _double(channel: Channel, team: _Team, pieces: Pieces) -> None:
    """Exchange all that one has with ever farther partners."""
    have = 1
    while have < team.size:
        own = team.rank // have * have
        other = own ^ have
        partner = team.place_of(team.rank ^ have)
        channel.exchange(
            pieces.span(own, own + have), partner, pieces.span(other, other + have), partner
        )
        have *= 2


class _Team:
    """The ranks that play: a power of two of them. With r = n − size ranks too many,

    ranks 0 … 2r−1 form pairs (even, odd) in which the odd one plays; all ranks from 2r on play.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.size = 1 << channel.size.bit_length() - 1
        self._pairs = channel.size - self.size
        self._paired = channel.rank < 2 * self._pairs
        self.plays = not self._paired or channel.rank % 2 == 1
        self.rank = channel.rank // 2 if self._paired else channel.rank - self._pairs
        self.even = channel.rank - 1 if self._paired and self.plays else channel.rank

    def place_of(self, player: int) -> int:
        """Return the channel's rank of a player."""
        return 2 * player + 1 if player < self._pairs else player + self._pairs

    def joined(self, pieces: Pieces) -> Pieces:
        """Return the same tensor with one piece per player: a pair's two pieces are one."""
        sizes = pieces.sizes
        pairs = [sizes[2 * k] + sizes[2 * k + 1] for k in range(self._pairs)]
        return Pieces(pieces.flat, pairs + sizes[2 * self._pairs :])

    def collect(self, tensor: Tensor, op: Op) -> None:
        """Fold the even rank's values into the odd one's."""
        if self._paired and self.plays:
            room = torch.empty_like(tensor)
            self._channel.recv(room, self._channel.rank - 1)
            op.combine(tensor, room)
        elif self._paired:
            self._channel.send(tensor, self._channel.rank + 1)

    def bring(self, pieces: Pieces) -> None:
        """Give the odd rank the even one's piece."""
        rank = self._channel.rank
        if self._paired and self.plays:
            self._channel.recv(pieces[rank - 1], rank - 1)
        elif self._paired:
            self._channel.send(pieces[rank], rank + 1)

    def hand_back(self, tensor: Tensor) -> None:
        """Give the even rank its share of the result."""
        if self._paired and self.plays:
            self._channel.send(tensor, self._channel.rank - 1)
        elif self._paired:
            self._channel.recv(tensor, self._channel.rank + 1)


def dissemination_barrier(channel: Channel) -> None:
    """Block, by messages among equals, until every rank calls this (Hensgen, Finkel & Manber 1988).

        n = 5    round (1)  r → r+1    each rank then knows of 2 arrivals, its own among them
                 round (2)  r → r+2    … of 4
                 round (3)  r → r+4    … of all

    Messages per rank: log2(n), rounded up, of one byte each way.
    """
    token, room = torch.zeros(1, dtype=torch.uint8), torch.empty(1, dtype=torch.uint8)
    distance = 1
    while distance < channel.size:
        right, left = (channel.rank + distance) % channel.size, channel.rank - distance
        channel.exchange(token, right, room, left % channel.size)
        distance *= 2
