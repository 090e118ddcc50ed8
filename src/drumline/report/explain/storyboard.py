"""An explanation in the terminal, step by step, and as one HTML page that needs nothing else.

step 1   0 ─d→ 1   1 ─a→ 2   2 ─b→ 3   3 ─c→ 0
  rank 0   a▪···  b▪···  c▪··▪  d▪···            ▪ in place r: rank r's values are in this piece

The page is `player.html` with the recording in it; `sentences.yaml` says what each collective does.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

import yaml
from rich.console import Console, Group, RenderableType
from rich.table import Column
from rich.text import Text

from drumline.core.formatting import counted, format_bytes, name_ranks
from drumline.report.explain.explanation import Explanation, describe_call, name_pieces
from drumline.report.tables import narrow_table, number_columns
from drumline.schedules.collectives import ROOTED, CollectiveCall
from drumline.schedules.cost import RankTraffic, bandwidths
from drumline.schedules.playback import Content, Move, RankContents

RANK_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_RECORDING = "/*RECORDING*/"
"""where the page has a hole for it"""
_COMBINES = frozenset({"reduce", "all_reduce", "reduce_scatter", "barrier"})


@cache
def sentences() -> dict[str, dict[str, str]]:
    """Read the sentences that explain collectives and algorithms."""
    text = files("drumline.report.explain").joinpath("sentences.yaml").read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = yaml.safe_load(text)
    return sections


def _describe(call: CollectiveCall) -> dict[str, str]:
    """Say what an explained collective does, how, and where to read it."""
    say = sentences()
    return {
        "what": say["collectives"][call.collective],
        "how": say["algorithms"][call.algorithm],
        "where": say["sources"][call.algorithm],
    }


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print an explained collective: title, steps, where it got stuck or what it cost."""
    for part in _parts(explanation, console.width):
        console.print(part, highlight=False)


def _parts(explanation: Explanation, width: int) -> Iterator[RenderableType]:
    board = _Board(explanation, width)
    yield _title(explanation.call)
    if explanation.playback.moves:
        yield board.legend()
        yield ""
        for step in range(explanation.playback.steps + 1):
            yield from board.step(step)
    elif board.call.ranks == 1:
        yield "nothing is sent: one rank has all there is"
    else:
        yield "nothing is sent: tensors without elements make no messages"
    yield ""
    if explanation.deadlock is not None:
        yield _stuck(explanation, width)
    else:
        yield _accounts(explanation)
        yield _times(explanation)


def _title(call: CollectiveCall) -> Text:
    nodes = f", {call.ranks_per_node} a node" if call.algorithm == "hierarchical" else ""
    root = f", root {call.root}" if call.collective in ROOTED else ""
    size = f", {format_bytes(call.nbytes)}" if call.collective != "barrier" else ""
    return Text.assemble(
        (f"{call.collective} by {call.algorithm}", "bold"),
        f": {counted(call.ranks, 'rank')}{nodes}{root}{size}\n",
        "{what}; {how} ({where})".format(**_describe(call)),
    )


class _Board:
    """Draws steps in the space that there is."""

    def __init__(self, explanation: Explanation, width: int) -> None:
        self.playback = explanation.playback
        self.width = width
        self.call = explanation.call
        nameless = self.call.collective == "barrier"  # its one piece is that a rank has come
        self.names = [""] if nameless else name_pieces(len(self.playback.pieces))
        self.combines = self.call.collective in _COMBINES
        self.all_to_all = self.call.collective == "all_to_all"
        longest = max(
            (sum(len(row.cells) + 2 for row in h.rows) for h in self.playback.holdings[0]),
            default=0,
        )
        self.marks = self.combines and 18 + longest * (self.call.ranks + 3) <= width
        self.gap = "  " if self.marks or 18 + longest * 5 <= width else " "

    def legend(self) -> Text:
        """Explain the marks."""
        text = Text(self._pieces())
        if self.marks:
            text.append("▪ in place r: ")
            for rank in range(self.call.ranks):
                text.append("▪", style=_color(rank)).append(f"{rank} ")
            what = "r has been heard of" if self.call.collective == "barrier" else "r is in the sum"
            text.append(what)
        elif self.combines:
            text.append("a3: piece a with the values of 3 ranks")
        elif self.all_to_all:
            text.append("b0: part b of rank 0")
        if not self.combines:
            text.append("· nothing yet" if text.plain.endswith("\n") else "; · nothing yet")
        if any(held.beside for now in self.playback.holdings for held in now):
            text.append("; + beside its buffers")
        return text

    def _pieces(self) -> str:
        sizes = [(end - start) * self.call.element_bytes for start, end in self.playback.pieces]
        if self.call.collective == "barrier":
            return ""
        if len(sizes) == 1:
            return f"one piece, {self.names[0]}\n"
        about = "" if len(set(sizes)) == 1 else "up to "
        largest = format_bytes(max(sizes))
        return f"{len(sizes)} pieces, {self.names[0]} … {self.names[-1]}, of {about}{largest}\n"

    def step(self, step: int) -> Iterator[Text]:
        """Show who sends what, and what ranks hold then; ranks that gain nothing are left out."""
        line = Text(f"step {step}" if step else "start", style="bold")
        for arrow in (self._arrow(move) for move in self.playback.moves if move.step == step):
            if line.cell_len + 3 + arrow.cell_len > self.width:
                yield line
                line = Text(" " * 6)
            line = Text("   ").join([line, arrow])
        yield line
        now = self.playback.holdings[step]
        before = self.playback.holdings[step - 1] if step else [None] * len(now)
        for rank, held in enumerate(now):
            if held != before[rank]:
                yield self._rank(rank, held, before[rank])

    def _arrow(self, move: Move) -> Text:
        names = [self.names[content.piece] for content in move.content]
        carried = "".join(names) if len(names) <= 4 else f"{names[0]}…{names[-1]}"
        lost = "" if move.received_ns is not None else "✗"
        return Text.assemble(
            (str(move.source), _color(move.source)),
            f" ─{carried}→{lost} ",
            (str(move.target), _color(move.target)),
        )

    def _rank(self, rank: int, held: RankContents, before: RankContents | None) -> Text:
        line = Text.assemble("  ", (f"rank {rank:<{len(str(self.call.ranks - 1))}} ", _color(rank)))
        for number, row in enumerate(held.rows):
            old = [r.cells for r in before.rows if r.name == row.name] if before else []
            if len(held.rows) > 1:
                line.append(f" {'│ ' if number else ''}{row.name}")
            for place, cell in enumerate(row.cells):
                fresh = bool(old) and (place >= len(old[0]) or old[0][place] != cell)
                line.append(self.gap).append_text(self._cell(cell, fresh))
        for content in held.beside:
            line.append("  +").append_text(self._cell(content, False))
        return line

    def _cell(self, cell: Content | None, fresh: bool) -> Text:
        """Write a piece; what has just come is bold."""
        if cell is None:
            return Text("·", style="dim")
        name, strong = self.names[cell.piece], "bold " if fresh else ""
        if self.marks:
            text = Text(name, style=strong)
            for rank in range(self.call.ranks):
                has = bool(cell.owners >> rank & 1)
                text.append("▪" if has else "·", style=strong + _color(rank) if has else "dim")
            return text
        if self.combines:
            return Text(f"{name}{cell.owners.bit_count()}", style=strong)
        owner = cell.owners.bit_length() - 1
        return Text(f"{name}{owner}" if self.all_to_all else name, style=strong + _color(owner))


def _color(rank: int) -> str:
    return RANK_COLORS[rank % len(RANK_COLORS)]


def _accounts(explanation: Explanation) -> RenderableType:
    """Compare what each rank sent and received with the formulas."""
    numbers = number_columns("rank", "sent", "bytes", "received", "bytes")
    table = narrow_table(*numbers, Column("formula", no_wrap=True))
    for rank, noted in enumerate(explanation.counted):
        wanted = explanation.predicted[rank]
        cells, right = _traffic(noted), _traffic(wanted)
        verdict = "✓ the same" if noted == wanted else "✗ {}, {}; {}, {}".format(*right)
        table.add_row(Text(str(rank), style=_color(rank)), *cells, verdict)
    return Group(Text("messages and bytes of each rank", style="bold"), table, "")


def _traffic(t: RankTraffic) -> tuple[str, ...]:
    counts = (t.sent_messages, t.sent_bytes, t.received_messages, t.received_bytes)
    return tuple(f"{count:,}" for count in counts)


def _times(explanation: Explanation) -> RenderableType:
    """Compare the time with what alpha and beta predict."""
    timing, path, call = explanation.timing, explanation.path, explanation.call
    assert timing is not None
    ab = timing.alpha_beta
    table = narrow_table(Column(style="bold", no_wrap=True), Column())
    table.show_header = False
    table.box = None
    spread = f"{_ms(timing.shortest_s)} to {_ms(timing.longest_s)}"
    table.add_row("measured", f"{_ms(timing.measured_s)} (median; {spread})")
    if timing.round_bytes:
        sizes = ", ".join(format_bytes(nbytes) for nbytes in timing.round_bytes)
        rounds = f"{counted(path.rounds, 'round')} × alpha + {path.nbytes:,} bytes × beta"
        table.add_row("predicted", f"{_ms(explanation.predicted_s)} = {rounds}")
        table.add_row(
            "",
            f"alpha {ab.alpha_s * 1e6:.0f} ± {ab.alpha_error_s * 1e6:.0f} µs a message, beta "
            f"{ab.beta_s_per_byte * 1e9:.2f} ± {ab.beta_error_s_per_byte * 1e9:.2f} ns a byte; "
            f"measured in this run, with rounds of {sizes}",
        )
        if note := explanation.crowd:
            table.add_row("", note)
    if call.nbytes and call.ranks > 1:
        own, bus = bandwidths(call.collective, call.ranks, call.nbytes, timing.measured_s)
        both = f"algorithm {format_bytes(own)}/s, bus {format_bytes(bus)}/s, as in nccl-tests"
        table.add_row("bandwidth", both)
    return table


def _stuck(explanation: Explanation, width: int) -> RenderableType:
    """Show who waits for whom."""
    deadlock = explanation.deadlock
    assert deadlock is not None
    lines: list[RenderableType] = [
        Text(f"stuck: nothing moved for {deadlock.patience_s:g} s", style="bold red"),
        f"rank {deadlock.odd_rank} calls {describe_call(deadlock.odd_call)}, "
        f"the others {describe_call(deadlock.call)}",
    ]
    for wait in deadlock.waits:
        strong = "bold" if wait.rank in deadlock.circle else ""
        lines.append(_indented(wait.sentence, width, strong))
    if deadlock.finished:
        its = "its call" if len(deadlock.finished) == 1 else "their calls"
        ranks = name_ranks(deadlock.finished)
        lines.append(_indented(f"done with {its}: {ranks}", width, "dim"))
    if deadlock.circle:
        way = " → ".join(str(rank) for rank in [*deadlock.circle, deadlock.circle[0]])
        lines.append(Text(f"a circle: {way}; each waits for the next", style="red"))
    lines += ["", Text("the same calls in checked mode (on for up to 8 ranks) say", style="bold")]
    lines.append(_indented(deadlock.checked, width, ""))
    return Group(*lines)


def _indented(text: str, width: int, style: str) -> Text:
    lines = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    return Text("\n".join(lines), style=style)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def render_page(explanation: Explanation) -> str:
    """Return the HTML page of an explained collective."""
    document = {**explanation.to_json(), "words": _describe(explanation.call)}
    # In a script element only "</" could end it early, and "<!--" confuse it.
    text = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    template = files("drumline.report.explain").joinpath("player.html").read_text(encoding="utf-8")
    return template.replace(_RECORDING, text, 1)
