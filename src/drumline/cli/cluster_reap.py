"""`drumline reap`: everything that this tool ever made; `drumline prices`."""

from __future__ import annotations

import sys
from dataclasses import asdict

from rich.console import Console
from rich.prompt import Confirm

from drumline.cli.node_table import NodeRows
from drumline.cli.printing import print_json
from drumline.core.errors import UsageError

_QUESTION = "Remove every cluster that drumline ever made, here and in your AWS account?"


def reap_command(*, yes: bool, regions: list[str], as_json: bool) -> None:
    """Remove it all, once somebody has said yes."""
    from drumline.cluster.reaping import reap_all

    console = Console(stderr=as_json, highlight=False)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("reap removes all clusters; nobody can be asked here: add --yes")
        if not Confirm.ask(_QUESTION, console=console, default=False):
            return
    with NodeRows(console, "reaping") as rows:
        reaped = reap_all(rows.say, regions)
    if as_json:
        print_json(asdict(reaped))
        return
    for resource in reaped.removed:
        console.print(f"removed {resource.kind} {resource.identity} {resource.detail}".rstrip())
    for note in reaped.notes:
        console.print(note, soft_wrap=True)
    if not reaped.removed:
        console.print("nothing was left")


def prices_command(region: str | None, *, as_json: bool) -> None:
    """Fetch the price list."""
    from drumline.cluster.ec2.cloud import Cloud, open_session
    from drumline.cluster.prices import refresh, refreshed_table

    session = open_session(region=region)
    cloud = Cloud(session, region=region)
    with NodeRows(Console(stderr=as_json, highlight=False), "prices") as rows:
        rows.say(cloud.region, "asking for the price list")
        table = refresh(cloud, [cloud.region])
    if as_json:
        print_json(table.to_json())
    else:
        count = len(table.machines[cloud.region])
        print(f"{count} prices of {cloud.region}, {table.date}: {refreshed_table()}")
    if table.doubt:
        print(f"drumline: {table.doubt}", file=sys.stderr)
