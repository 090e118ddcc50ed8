"""Commands that make and remove clusters: `cluster init`, `plan`, `up`, `down`, `reap`, …"""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli.app import App, Json, app, print_json

cluster_app = App(help="Write a cluster.yaml to start from.")
PANEL = "Clusters"
app.add_typer(cluster_app, name="cluster", rich_help_panel=PANEL)

ClusterArgs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CLUSTER.yaml] [KEY=VALUE]…", help="Default: ./cluster.yaml."),
]
Which = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="NAME", help="Default: ./cluster.yaml's, or the one."),
]


@cluster_app.command("init", calls="cluster:init_command")
def init(
    provider: Annotated[str, typer.Argument(help="ec2, ssh or twin.")] = "twin",
    name: Annotated[str | None, typer.Option(help="Default: the folder's.")] = None,
    force: Annotated[bool, typer.Option(help="Replace a cluster.yaml that is there.")] = False,
) -> None:
    """Write a commented cluster.yaml: ec2 (Amazon), ssh (your machines) or twin (a rehearsal here).

    Examples:
        drumline cluster init
        drumline cluster init ec2 --name mnist
    """


@app.command(rich_help_panel=PANEL, calls="cluster:plan_command")
def plan(args: ClusterArgs = None, as_json: Json = False) -> None:
    """Say what `up` would create, what it costs per hour and at most; change nothing.

    Examples:
        drumline plan
        drumline plan nodes=4 ec2.spot=true
    """


@app.command(rich_help_panel=PANEL, calls="cluster:up_command")
def up(args: ClusterArgs = None, as_json: Json = False) -> None:
    """Create and provision the cluster of ./cluster.yaml; again: go on, or change nothing.

    Examples:
        drumline up
        drumline up big.yaml nodes=8
    """


@app.command(rich_help_panel=PANEL, calls="cluster:down_command")
def down(
    which: Which = None,
    pull: Annotated[bool, typer.Option(help="Bring jobs' results here first.")] = True,
    identity: Annotated[
        str | None, typer.Option("--id", help="The one of several with this name.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Of EC2: where a cluster is that another machine has made.")
    ] = None,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            "--forget",
            metavar="HOST",
            help="Of ssh: give up what is on a machine that does not answer; may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove everything of a cluster, and print the receipt that was read back.

    Examples:
        drumline down
        drumline down --cluster mnist --no-pull
        drumline down --cluster mnist --region eu-central-1   (with nothing but the tags)
    """


@app.command(rich_help_panel=PANEL, calls="cluster:reap_command")
def reap(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    regions: Annotated[
        list[str] | None,
        typer.Option("--region", help="Of EC2; may be given several times (default: all)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove everything that this tool ever made: simulated clusters of this machine, and in your
    AWS account whatever has its tags, also from another laptop.
    """


@app.command(rich_help_panel=PANEL, calls="cluster:extend_command")
def extend(
    by: Annotated[str, typer.Argument(metavar="DURATION", help="Such as 2h, 90m or 1h30m.")],
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Let the nodes live longer than max_hours and budget_usd say.

    Examples:
        drumline extend 2h
    """


@app.command(rich_help_panel=PANEL, calls="cluster:inventory_command")
def inventory(
    everything: Annotated[
        bool, typer.Option("--list", help="All hosts, as Ansible asks for them.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="One host's variables.")] = None,
    which: Which = None,
) -> None:
    """Print an Ansible dynamic inventory of the cluster.

    Examples:
        drumline inventory --list
        drumline inventory --host worker1
    """


@app.command("iam-policy", rich_help_panel=PANEL)
def iam_policy(
    spot: Annotated[bool, typer.Option(help="With what the first spot request needs.")] = False,
    role: Annotated[
        str | None, typer.Option(help="With handing nodes this role (ec2.instance_profile).")
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(help="Whose partition it is for (China, GovCloud); default: as configured."),
    ] = None,
) -> None:
    """Print the least IAM policy that lets drumline make and remove clusters on EC2."""
    from drumline.cluster.providers.ec2.cloud import partition_of, policy_document

    print_json(policy_document(spot=spot, role=role, partition=partition_of(region)))


@app.command(rich_help_panel=PANEL, calls="cluster:prices_command")
def prices(
    region: Annotated[str | None, typer.Option(help="Default: your AWS configuration's.")] = None,
    as_json: Json = False,
) -> None:
    """Refresh the table of EC2's on-demand prices from AWS's price list."""
