"""What making and removing clusters does and prints: `plan`, `up`, `down`, `reap`, `extend`, …"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.prompt import Confirm
from rich.table import Table

from drumline.cli.app import print_json
from drumline.cli.cluster_display import NodeRows, print_machines
from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import describe_deadline
from drumline.cluster.life.receipt import Receipt
from drumline.cluster.providers import Plan, Resource
from drumline.cluster.spec import (
    FILE,
    LONGEST_HOURS,
    ClusterSpec,
    Ec2Spec,
    check_name,
    cluster_template,
    find_cluster,
    read_cluster,
    refuse_fewer_nodes,
)
from drumline.core.errors import ClusterError, DrumlineError, InterruptError, UsageError
from drumline.core.files import write_atomic
from drumline.core.formatting import counted, format_seconds


def init_command(provider: str, name: str | None, *, force: bool) -> None:
    """Run `drumline cluster init`: write cluster.yaml."""
    if provider not in ("ec2", "ssh", "twin"):
        raise UsageError(f"no provider {provider!r}; there are ec2, ssh and twin")
    if FILE.exists() and not force:
        raise UsageError(f"{FILE} is there already; edit it, or replace it with --force")
    if name is None:
        name = re.sub(r"[^a-z0-9]+", "-", Path.cwd().name.lower()).strip("-")[:40] or "drumline"
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(f"--name: {error}") from None
    write_atomic(FILE, cluster_template(provider, name))
    print(f"wrote {FILE}: look it over, then: drumline plan, drumline up")


def plan_command(args: list[str], *, as_json: bool) -> None:
    """Run `drumline plan`: say what `up` would do."""
    from drumline.cluster.providers import build_provider

    spec, _ = _read_cluster_args(args)
    home = ClusterHome.of(spec.name)
    refuse_fewer_nodes(spec, home)
    found = build_provider(spec, home).plan()
    if as_json:
        print_json({**asdict(found), "most_usd": found.most_usd, "cluster": spec.name})
    else:
        _print_plan(Console(highlight=False), spec, found)


def up_command(args: list[str], *, as_json: bool) -> None:
    """Run `drumline up`: make the cluster."""
    from drumline.cluster.life.up import bring_up

    spec, folder = _read_cluster_args(args)
    console = Console(stderr=as_json, highlight=False)
    began = time.monotonic()
    try:
        with NodeRows(console, _title(spec)) as rows:
            cluster = bring_up(spec, folder, rows.report)
    except KeyboardInterrupt:
        raise InterruptError(
            "interrupted; what was made is there: drumline up goes on, drumline down removes it"
        ) from None
    took_s = time.monotonic() - began
    if as_json:
        print_json(
            {
                "cluster": spec.name,
                "provider": spec.provider,
                "nodes": [machine.to_json() for machine in cluster.machines],
                "made": cluster.made,
                "provisioned": cluster.provisioned,
                "price_usd": cluster.price_usd,
                "deadline": cluster.deadline,
                "limits_changed": cluster.limits_changed,
                "took_s": took_s,
            }
        )
        return
    changed = bool(cluster.made or cluster.provisioned or cluster.limits_changed)
    took = f", after {format_seconds(took_s)}" if changed else "; nothing had to change"
    print_machines(console, cluster.machines)
    console.print(f"{spec.name} is up{took}")
    if cluster.limits_changed:
        console.print(f"limits changed: {', '.join(cluster.limits_changed)}", soft_wrap=True)
    console.print(describe_limits(spec, cluster.deadline, cluster.price_usd), soft_wrap=True)
    console.print("next: drumline submit -- train.py … · drumline status · drumline down")


def down_command(
    which: str | None,
    *,
    pull: bool,
    identity: str | None,
    region: str | None,
    give_up: list[str],
    as_json: bool,
) -> None:
    """Run `drumline down`: remove the cluster."""
    from drumline.cluster.life.down import take_down

    try:
        spec, home = find_cluster(which)
    except UsageError:  # made by another machine, perhaps: tags will tell
        if which is not None and region is not None:
            spec = ClusterSpec(name=which, provider="ec2", ec2=Ec2Spec(region=region))
        elif which is None and FILE.exists():
            spec = read_cluster(None)
        else:
            raise
        home = ClusterHome.of(spec.name)
        pull = False
    console = Console(stderr=as_json, highlight=False)
    with NodeRows(console, f"{home.name}: removing") as rows:
        if pull:
            _pull_first(spec, home, rows, give_up)
        receipt = take_down(spec, home, rows.report, identity=identity, give_up=give_up)
    if as_json:
        print_json(receipt.to_json())
    else:
        _print_receipt(console, receipt)


def extend_command(by: str, which: str | None, *, as_json: bool) -> None:
    """Run `drumline extend`: move the nodes' deadline."""
    from drumline.cluster.home import lock_cluster
    from drumline.cluster.life.limits import parse_duration, set_limits
    from drumline.cluster.ssh.fleet import Fleet, connected, run_on

    seconds = parse_duration(by)
    spec, home = find_cluster(which)
    if spec.provider == "ssh":
        raise UsageError("these machines are yours, and have no limit that could be moved")
    with lock_cluster(home):
        known = home.read_facts().deadline
        if known is None:
            raise UsageError(
                f"{spec.name} is not up yet, so there is no limit to move: drumline up"
            )
        deadline = float(known) + seconds
        if deadline > time.time() + LONGEST_HOURS * 3600:
            raise UsageError(
                f"nodes live until {describe_deadline(known)}, and may live for "
                f"{LONGEST_HOURS // 24} days from now at most; extend by less, and again later"
            )

        async def move(fleet: Fleet) -> None:
            await fleet.all(lambda one: set_limits(one, deadline, spec.idle_minutes))

        run_on(connected(spec, home), move)
        home.note(deadline=deadline)
    price = sum(machine.price_usd for machine in home.read_facts().machines)
    if as_json:
        print_json({"cluster": spec.name, "deadline": deadline})
    else:
        print(describe_limits(spec, deadline, price))


def inventory_command(which: str | None, *, host: str | None) -> None:
    """Run `drumline inventory`: print what Ansible asks for."""
    from drumline.cluster.provision.playbook import inventory_host, inventory_list

    _, home = find_cluster(which)
    document = inventory_list(home.read_facts().machines, home.ssh_config)
    print_json(document if host is None else inventory_host(document, host))


def _read_cluster_args(args: list[str]) -> tuple[ClusterSpec, Path]:
    """Read `[CLUSTER.yaml] [KEY=VALUE]…`; returns the spec and the folder of its file."""
    files = [arg for arg in args if "=" not in arg]
    if len(files) > 1:
        raise UsageError(f"one cluster at a time: {files[0]} or {files[1]}?")
    file = Path(files[0]) if files else None
    spec = read_cluster(file, [arg for arg in args if "=" in arg])
    return spec, (file or FILE).absolute().parent


def describe_limits(spec: ClusterSpec, deadline: float | None, price_usd: float) -> str:
    """Say to a person when a cluster's nodes end themselves, and what they can cost."""
    if deadline is None:
        return "the machines are yours: drumline down removes what it has put there, and no more"
    at = describe_deadline(deadline)
    idle = "" if spec.idle_minutes is None else f", or after {spec.idle_minutes:g} idle minutes"
    most = ""
    if price_usd:
        left = max(0.0, deadline - time.time()) / 3600 * price_usd
        most = f"; {price_usd:.2f} USD/h, at most {left:.2f} USD from now"
    return f"the nodes end themselves at {at}{idle}{most}"


def _print_receipt(console: Console, receipt: Receipt) -> None:
    console.print(f"receipt: {receipt.cluster}", style="italic", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("node", "id", "hours", "USD/h", "USD"):
        table.add_column(name, justify="left" if name in ("node", "id") else "right")
    for line in receipt.lines:
        numbers = (f"{line.hours:.2f}", f"{line.price_usd:.3f}", f"{line.usd:.2f}")
        table.add_row(line.node, line.identity, *numbers)
    console.print(table)
    console.print(f"removed: {_count(receipt.removed) or 'nothing was there'}", soft_wrap=True)
    console.print(f"left: {len(receipt.left)} resources, as read back from {receipt.provider}")
    console.print(f"total: {receipt.usd:.2f} USD, without traffic")
    for note in receipt.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _print_plan(console: Console, spec: ClusterSpec, found: Plan) -> None:
    title = _title(spec)
    if not found.resources:
        console.print(f"{title}: all is there; up would change nothing")
    else:
        console.print(f"{title}; up would make", style="italic", soft_wrap=True)
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for resource in found.resources:
            table.add_row(resource.kind, resource.detail)
        console.print(table)
    if found.exists:
        console.print(f"there already: {_count(found.exists)}")
    if found.price_usd:
        console.print(f"price: {found.price_usd:.2f} USD/h ({found.priced})", soft_wrap=True)
        console.print(f"at most: {found.most_usd:.2f} USD in {found.hours:.1f} h", soft_wrap=True)
    elif found.priced:
        console.print(f"price: {found.priced}", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _title(spec: ClusterSpec) -> str:
    return f"{spec.name}: {counted(spec.nodes, 'node')} of {spec.provider}"


def _count(resources: Iterable[Resource]) -> str:
    kinds = Counter(resource.kind for resource in resources)
    plurals = {kind: f"{kind}es" for kind in kinds if kind.endswith("s")}
    return ", ".join(counted(count, kind, plurals.get(kind)) for kind, count in kinds.items())


def _pull_first(spec: ClusterSpec, home: ClusterHome, rows: NodeRows, give_up: list[str]) -> None:
    """Bring what jobs have left on the nodes, before it is gone for good.

    Raises:
        ClusterError: a node that is there does not give it; says how to go on without.
    """
    from drumline.cli.jobs import pull_all
    from drumline.cluster.life.down import find_own
    from drumline.cluster.providers import build_provider

    provider, noted = build_provider(spec, home), list(home.read_facts().machines)
    given_up = {find_own(spec, provider.machines(), name).identity for name in give_up}
    noted = [machine for machine in noted if machine.identity not in given_up]
    tried: set[str] | None = None
    while True:
        there = {machine.identity for machine in provider.machines()}
        there &= {machine.identity for machine in noted}
        for machine in noted:
            if machine.identity not in there:
                rows.report(machine.name, "has ended already, with what was on it")
        if not there:
            return None  # or an `up` that was cut short: no job has run there
        try:
            return pull_all(spec, home, rows.report, there)
        except (DrumlineError, OSError) as error:
            why = error.message if isinstance(error, DrumlineError) else str(error)
            if there == tried:  # else one of them may have ended just now
                raise ClusterError(
                    f"not all results could be brought here: {why}; nothing was removed: try again "
                    f"(drumline up lets your present address in), or give them up: drumline down "
                    f"--no-pull"
                ) from None
            tried = there


def reap_command(*, yes: bool, regions: list[str], as_json: bool) -> None:
    """Run `drumline reap`: remove all clusters, once somebody has said yes."""
    from drumline.cluster.life.down import reap_all

    console = Console(stderr=as_json, highlight=False)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("reap removes all clusters; nobody can be asked here: add --yes")
        question = "Remove every cluster that drumline ever made, here and in your AWS account?"
        if not Confirm.ask(question, console=console, default=False):
            return
    with NodeRows(console, "reaping") as rows:
        reaped = reap_all(rows.report, regions)
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
    """Run `drumline prices`: fetch EC2's price list."""
    from drumline.cluster.providers.ec2.cloud import Cloud, open_session
    from drumline.cluster.providers.ec2.prices import refresh_prices, refreshed_table

    session = open_session(region=region)
    cloud = Cloud(session, region=region)
    with NodeRows(Console(stderr=as_json, highlight=False), "prices") as rows:
        rows.report(cloud.region, "asking for the price list")
        table = refresh_prices(cloud, [cloud.region])
    if as_json:
        print_json(table.to_json())
    else:
        count = len(table.machines[cloud.region])
        print(f"{count} prices of {cloud.region}, {table.date}: {refreshed_table()}")
    if table.doubt:
        print(f"drumline: {table.doubt}", file=sys.stderr)
