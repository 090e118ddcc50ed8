"""`drumline explain`: a collective, recorded message by message, and played back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from drumline.cli.app import print_json
from drumline.cli.commands.train import ExplainOptions
from drumline.core.errors import UsageError
from drumline.core.files import write_atomic
from drumline.core.formatting import parse_bytes
from drumline.core.json_lines import Message
from drumline.launcher.probe import launched_probe
from drumline.report.explain.explanation import Explanation, build_explanation, find_deadlock
from drumline.report.explain.storyboard import print_explanation, render_page
from drumline.schedules.collectives import (
    ROOTED,
    CollectiveCall,
    find_algorithm_name,
    make_mistake,
    whole_elements,
)

MAX_RANKS = 16
MAX_BYTES = 2**22
_ELEMENT_BYTES = 8
_STUCK_S = 3.0


def _read_call(given: ExplainOptions) -> CollectiveCall:
    """Build the call that the options describe, or refuse them with a UsageError."""
    algorithm = find_algorithm_name(given.collective, given.algorithm)
    if not 1 <= given.ranks <= MAX_RANKS:
        raise UsageError(
            f"--ranks {given.ranks}: expected 1 to {MAX_RANKS}; more cannot be told apart in a "
            f"figure"
        )
    if not 0 <= given.root < given.ranks:
        raise UsageError(
            f"--root {given.root}: ranks go from 0 to {given.ranks - 1}; raise --ranks, or "
            f"choose one of them"
        )
    if given.root and given.collective not in ROOTED:
        raise UsageError(f"--root {given.root}: {given.collective} has no root; leave it out")
    if given.ranks_per_node < 1:
        raise UsageError(f"--ranks-per-node {given.ranks_per_node}: expected 1 or more")
    call = CollectiveCall(
        collective=given.collective,
        algorithm=algorithm,
        ranks=given.ranks,
        elements=_count_elements(given),
        element_bytes=_ELEMENT_BYTES,
        root=given.root,
        ranks_per_node=given.ranks_per_node if algorithm == "hierarchical" else None,
    )
    nothing_sent = call.ranks == 1 or not (call.nbytes or call.collective == "barrier")
    if given.mismatch and nothing_sent:
        raise UsageError(
            "--mismatch needs two ranks at least, and something to send: nobody waits otherwise"
        )
    return call


def _count_elements(given: ExplainOptions) -> int:
    """Whole elements of eight bytes, and whole parts where each rank has one."""
    if given.collective == "barrier":
        return 0
    try:
        nbytes = parse_bytes(given.size)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from None
    if nbytes > MAX_BYTES:
        raise UsageError(
            f"--size {given.size}: expected {MAX_BYTES // 2**20} MiB at most; the steps of a "
            f"larger one are the same"
        )
    return whole_elements(given.collective, given.ranks, nbytes, _ELEMENT_BYTES)


def explain_command(
    options: ExplainOptions, *, html: Path | None, out: Path | None, show: bool, as_json: bool
) -> None:
    """Run `drumline explain`: record a collective; show it here, on a page or as JSON."""
    call = _read_call(options)
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}; make it first")
    if html is not None and html.is_dir():
        raise UsageError(f"--html {html} is a folder; name a file, such as {html / 'page.html'}")
    explanation = _record(call, out, mismatch=options.mismatch)
    page = html or (Path(f"{call.collective}-{call.algorithm}.html") if show else None)
    if page is not None:
        write_atomic(page, render_page(explanation))
    if as_json:
        print_json(explanation.to_json())
        return
    console = Console()
    print_explanation(console, explanation)
    hint = f"as a page to play with: add --html {call.collective}.html"
    console.print(f"\npage: {page}" if page else f"\n{hint}", markup=False, highlight=False)
    if show and page is not None:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())


def _record(call: CollectiveCall, out: Path | None, *, mismatch: bool) -> Explanation:
    request: Message = {"call": asdict(call)}
    odd_rank, odd_call = make_mistake(call) if mismatch else (0, call)
    if mismatch:
        request |= {"odd_rank": odd_rank, "odd_call": asdict(odd_call), "patience_s": _STUCK_S}
    with launched_probe("drumline.probe.record", request, ranks=call.ranks, out=out) as answers:
        deadlock = find_deadlock(call, odd_rank, odd_call, _STUCK_S, answers) if mismatch else None
        return build_explanation(call, answers, deadlock)
