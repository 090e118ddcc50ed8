"""Commands that start ranks: `train`, `run`, `explain`; `init`, to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import REST_IS_THEIRS, Json, Module, app
from drumline.core.errors import UsageError
from drumline.core.task import OnHang

Rank = Annotated[int | None, typer.Option(help="Be this one rank, started by hand.")]
WorldSize = Annotated[int | None, typer.Option(help="With --rank: how many there are.")]
Master = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="With --rank: where rank 0 listens.")
]


@app.command(calls="train:train_command")
def train(
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.yaml] [KEY=VALUE]…", help="A spec file; keys to override."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Exact run directory (default: runs/<name>-<n>).")
    ] = None,
    rank: Rank = None,
    world_size: WorldSize = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Train a model on N workers of this machine, or on simulated nodes.

    Examples:
        drumline train
        drumline train model=mlp workers=4 strategy=chunked_ring epochs=3
        drumline train spec.yaml optimizer.lr=0.1 --json
        drumline train strategy=ring strategy.compress=fp16   (half the bytes)
        drumline train data=table.csv data.target=price   (or photos/, book.txt, mine:dataset)
        drumline train resume=runs/run-3 epochs=10
        drumline train model=gpt-mini data=shakespeare strategy=pipeline   (or tensor, or rpc)
        drumline train nodes=4 workers=1 link=1gbit slow_nodes.2.rate=100mbit slow_nodes.3.cpu=0.5
        drumline train --rank 0 --world-size 2 --master localhost:29500   (and rank 1 elsewhere)
        torchrun --nproc-per-node 2 -m drumline train model=cnn
    """


@app.command(calls="init:init_command")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
) -> None:
    """Write a small project: data, model and spec of your own, with a test. It trains at once.

    Examples:
        drumline init my-project
        cd my-project && drumline train spec.yaml
    """


@dataclass(frozen=True, kw_only=True)
class ObserveOptions:
    """What is noted of a script's run, and what happens when it hangs."""

    ledger: Annotated[
        bool, typer.Option("--ledger/--no-ledger", help="Note steps and collectives.")
    ] = True
    hang_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Tell who hangs within so long of the last progress; 0: never.",
        ),
    ] = 5.0
    on_hang: Annotated[OnHang, typer.Option(help="Whether a hang also ends the run.")] = (
        OnHang.REPORT
    )

    def __post_init__(self) -> None:
        if self.on_hang is OnHang.STOP and not (self.ledger and self.hang_after):
            without = "--hang-after 0" if self.ledger else "--no-ledger"
            raise UsageError(
                f"{without} --on-hang stop: a hang is not looked for then; leave one of them out"
            )


@app.command(context_settings=REST_IS_THEIRS, calls="script:run_script_command")
def run(
    script: Annotated[str, typer.Argument(help="A PyTorch script, as for torchrun.")],
    observe: ObserveOptions,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    shape: Annotated[
        str, typer.Option("-j", metavar="[N]x[M]", help="N nodes with M workers each.")
    ] = "1x2",
    restarts: Annotated[
        int, typer.Option(min=0, max=100, help="How often to start again when a worker dies.")
    ] = 0,
    link_rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Rate of each node's link, e.g. 100mbit.")
    ] = None,
    slow_node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE.KEY=VALUE", help="Slow down: 2.rate=100mbit or 3.cpu=0.5 (repeatable)."
        ),
    ] = None,
    module: Module = False,
    rank: Rank = None,
    world_size: WorldSize = None,
    master: Master = None,
) -> None:
    """Run anybody's PyTorch script on many workers, with the variables that torchrun sets.

    Examples:
        drumline run train.py --epochs 3
        drumline run -j 2x2 train.py
        drumline run -j 4x1 --link-rate 1gbit --slow-node 2.rate=100mbit train.py
        drumline run -m package.train --epochs 3
        drumline run --on-hang stop --hang-after 30 train.py
        drumline run --rank 0 --world-size 2 --master node01:29500 train.py   (and rank 1 elsewhere)
    """


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Which collective to explain."""

    collective: Annotated[
        str,
        typer.Argument(
            help="broadcast, reduce, scatter, gather, all_gather, reduce_scatter, all_reduce, "
            "all_to_all or barrier."
        ),
    ]
    algorithm: Annotated[
        str | None,
        typer.Option(help="linear, tree, ring, chunked_ring, halving_doubling, … (default: ours)."),
    ] = None
    ranks: Annotated[int, typer.Option(help="How many, up to 16.")] = 4
    size: Annotated[
        str, typer.Option(help="Of the tensor, or of all parts together, as in nccl-tests.")
    ] = "64KiB"
    root: Annotated[int, typer.Option(help="The rank that sends or collects.")] = 0
    ranks_per_node: Annotated[
        int, typer.Option(help="For hierarchical: how many ranks share a node.")
    ] = 2
    mismatch: Annotated[
        bool, typer.Option(help="Let one rank make another call, and see who waits for what.")
    ] = False


@app.command(calls="explain:explain_command")
def explain(
    options: ExplainOptions,
    html: Annotated[Path | None, typer.Option(help="Also write a page to play with.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run directory there.")] = None,
    as_json: Json = False,
) -> None:
    """Record every message of a real collective, and play it back step by step.

    Examples:
        drumline explain all_reduce
        drumline explain all_reduce --algorithm halving_doubling --ranks 8 --html all_reduce.html
        drumline explain broadcast --algorithm tree --root 2 --size 1MiB
        drumline explain all_reduce --mismatch
    """
