"""`Ec2Provider`: the machines of one cluster at Amazon EC2.

    create:  what exists? ─▶ type, zones, image ─▶ key pair ─▶ security group ─▶ placement group
             ─▶ nodes ─▶ they run

Reading comes first, so that what cannot work is refused before anything exists. Tags alone say what
exists; the folder on this machine only adds the id, and what was about to happen.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import boto3

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.journal import Journal
from drumline.cluster.providers import Machine, Plan, Provider, Reporter, Resource
from drumline.cluster.providers.ec2 import inventory, launch, offerings
from drumline.cluster.providers.ec2.cloud import Cloud, CloudWriter, Sleep, open_session, refusal
from drumline.cluster.providers.ec2.inventory import InventoryItem, of_cluster
from drumline.cluster.providers.ec2.launch import by_node, refuse_stopped
from drumline.cluster.providers.ec2.prices import node_price, plan_cost, read_prices
from drumline.cluster.providers.ec2.removal import end_instances, remove_all
from drumline.cluster.providers.ec2.shared_resources import SharedResources, refuse_another_id
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import check_key, cluster_key, host_key, public_key
from drumline.core.errors import RunDirError


def _missing_resources(
    spec: ClusterSpec,
    existing: Sequence[InventoryItem],
    facts: offerings.TypeFacts,
    places: Sequence[offerings.ZoneSubnet],
    image: offerings.Image,
) -> list[Resource]:
    whom = "you alone" if spec.ec2.allow_from == "auto" else spec.ec2.allow_from
    shared = {"key-pair": "", "security-group": f"SSH from {whom}, everything among nodes"}
    if spec.nodes > 1 and spec.ec2.placement_group and facts.placement:
        shared["placement-group"] = ""
    there = {item.kind for item in existing}
    made = [(kind, detail) for kind, detail in shared.items() if kind not in there]
    zones = " or ".join(place.zone for place in places)
    market = " spot" if spec.ec2.spot else ""
    detail = f"{spec.ec2.instance_type}{market} in {zones}, {image.name}, {spec.ec2.disk_gb} GB"
    missing = sorted({*range(spec.nodes)} - {*by_node(existing)})
    made += [("instance", f"worker{node}: {detail}") for node in missing]
    return [
        Resource(kind=kind, identity="", cluster=spec.name, detail=detail) for kind, detail in made
    ]


class Ec2Provider(Provider):
    """Machines of EC2, for one cluster.

    `home` may be empty, and need not exist to remove a cluster. The default `session` of AWS is
    what the spec and the environment say.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        home: ClusterHome,
        *,
        session: boto3.Session | None = None,
        sleep: Sleep = time.sleep,
    ) -> None:
        super().__init__(spec, home)
        ec2 = spec.ec2
        session = session or open_session(profile=ec2.profile, region=ec2.region)
        self.cloud = Cloud(session, region=ec2.region, sleep=sleep)
        self._adopted: str | None = None

    def plan(self) -> Plan:
        """Say what `create` would do; changes nothing."""
        spec, existing = self._spec, self._existing()
        refuse_another_id(spec.name, self._known_id() or "", existing)
        refuse_stopped(existing)
        facts = offerings.type_facts(self.cloud, spec.ec2.instance_type)
        places = offerings.find_places(self.cloud, spec.ec2)
        image = offerings.find_image(self.cloud, spec.ec2, facts)
        cost = plan_cost(self.cloud, spec, public=places[0].public, ask_market=True)
        notes = [*cost.notes]
        if spec.nodes > 1 and spec.ec2.placement_group and not facts.placement:
            notes.append(f"no placement group: {spec.ec2.instance_type} cannot be in one")
        if not places[0].public:
            notes.append(f"{places[0].subnet} gives no public addresses: reach its private ones")
        return replace(
            cost,
            resources=tuple(_missing_resources(spec, existing, facts, places, image)),
            exists=tuple(item.resource() for item in existing),
            notes=tuple(notes),
        )

    def create(self, report: Reporter) -> list[Machine]:
        """Make what is missing, and return all machines in node order; they may be booting yet.

        What was made stays where AWS refuses, for `create` to continue with, or for `remove`.
        """
        existing = self._existing()
        refuse_another_id(self._spec.name, self._known_id() or "", existing)
        nodes = by_node(existing)
        if nodes and max(nodes) >= self._spec.nodes:
            raise refusal("fewer-nodes", there=max(nodes) + 1, nodes=self._spec.nodes)
        refuse_stopped(existing)
        if set(range(self._spec.nodes)) <= set(nodes):
            # let in who calls now, who may have moved since, and nobody else
            network = offerings.allowed_network(self._spec.ec2)
            self._shared(report).security_group("", network, existing)
        else:
            nodes |= {item.node: item for item in self._launch(existing, report)}
        nodes = self._wait(nodes, report)
        return [self._machine(nodes[node]) for node in sorted(nodes)]

    def machines(self) -> list[Machine]:
        """Return the machines that there are, in node order."""
        nodes = by_node(list(inventory.instances(self.cloud, self._filters())))
        return [self._machine(nodes[node]) for node in sorted(nodes)]

    def ended(self) -> list[Machine]:
        """Return the machines that this cluster has had, each with its end where it is known."""
        if self._known_id() is None:  # the name alone may have been another cluster's an hour ago
            return []
        journal = Journal(self._home.journal)
        return inventory.past_machines(self.cloud, self._filters(), journal, self._price)

    def resources(self) -> list[Resource]:
        """Read back everything of this cluster that exists and is not yet gone, by tags alone."""
        found = inventory.read_inventory(self.cloud, self._filters())
        return [item.resource() for item in found]

    def remove(self, report: Reporter) -> None:
        """Remove everything of this cluster; blocks until EC2 says that it is gone.

        Where this machine does not know the cluster's id, the name decides, if it is of one only.
        """
        if self._known_id() is None:
            ids = sorted({item.cluster_id for item in self._existing()})
            if len(ids) > 1:
                several, name = ", ".join(ids), self._spec.name
                raise refusal("name-of-several", count=len(ids), cluster=name, ids=several)
        journal = Journal(self._home.journal if self._home.path.is_dir() else None)
        writer = CloudWriter(self.cloud, journal, report)
        remove_all(writer, self._filters())

    def adopt(self, identity: str) -> None:
        """Take over a cluster of this name that another machine has made."""
        ids = sorted({item.cluster_id for item in self._existing()})
        if identity not in ids:
            name, there = self._spec.name, ", ".join(ids) or "none of that name"
            region = self.cloud.region
            raise refusal("id-unknown", cluster=name, identity=identity, region=region, there=there)
        self._adopted = identity
        with contextlib.suppress(OSError, RunDirError):  # our full disk keeps nothing alive there
            self._home.make()
            self._home.note(id=identity)

    def settle(self) -> ClusterSpec:
        """Return the spec with the region and the profile that the environment names today."""
        self._authorized_key()  # a wrong key file must not cost a machine
        profile = self._spec.ec2.profile or os.environ.get("AWS_PROFILE")
        settled = {"region": self.cloud.region, "profile": profile}
        ec2 = self._spec.ec2.model_copy(update=settled)
        return self._spec.model_copy(update={"ec2": ec2})

    def _launch(self, existing: Sequence[InventoryItem], report: Reporter) -> list[InventoryItem]:
        spec, there = self._spec, by_node(existing)
        facts = offerings.type_facts(self.cloud, spec.ec2.instance_type)
        places = offerings.find_places(self.cloud, spec.ec2)
        image = offerings.find_image(self.cloud, spec.ec2, facts)
        if there:
            places = launch.places_of(places, there)
        plan_cost(self.cloud, spec, public=places[0].public)  # refuses a budget that is too small
        if doubt := read_prices(self.cloud.region).doubt:
            report("prices", doubt)
        network = offerings.allowed_network(spec.ec2)

        # Nothing was made up to here. From now on the id is on the disk.
        self._home.make()
        shared = self._shared(report)
        grouped = spec.nodes > 1 and spec.ec2.placement_group and facts.placement
        launcher = launch.Launcher(
            writer=self._writer(report),
            spec=spec,
            identity=self._home.cluster_id(),
            image=image,
            key_name=shared.key_pair(self._authorized_key(), existing),
            security_group=shared.security_group(places[0].vpc, network, existing),
            placement_group=shared.placement_group(existing) if grouped else None,
            user_data=self._user_data,
        )
        missing = [node for node in range(spec.nodes) if node not in there]
        return launcher.launch(missing, places, fixed=bool(there))

    def _wait(self, nodes: dict[int, InventoryItem], report: Reporter) -> dict[int, InventoryItem]:
        """Wait for the nodes, and end any second instance of one (two laptops at once)."""
        expected = {node: nodes[node].identity for node in sorted(nodes)}
        live = launch.wait_running(self.cloud, self._filters(), expected, report)
        kept = {one.node: one for one in live if one.identity in expected.values()}
        doubles = [one for one in live if one.identity not in expected.values()]
        end_instances(self._writer(report), doubles)
        return kept

    def _authorized_key(self) -> str:
        """Return the public half of the key that we sign in with, made where none is given."""
        given = self._spec.ec2.key_file
        return public_key(cluster_key(self._home) if given is None else check_key(given))

    def _user_data(self, node: int) -> str:
        return launch.cloud_config(
            self._spec,
            authorized_key=self._authorized_key(),
            host_key=host_key(self._home, node),
            hours=plan_cost(self.cloud, self._spec).hours,
        )

    def _writer(self, report: Reporter) -> CloudWriter:
        return CloudWriter(self.cloud, Journal(self._home.journal), report)

    def _shared(self, report: Reporter) -> SharedResources:
        return SharedResources(self._writer(report), self._spec.name, self._home.cluster_id())

    def _price(self, instance_type: str | None, *, public: bool = True) -> float:
        return node_price(self.cloud, self._spec, public=public, instance_type=instance_type) or 0.0

    def _existing(self) -> list[InventoryItem]:
        """Return everything with this cluster's name, whatever its id."""
        return inventory.read_inventory(self.cloud, of_cluster(self._spec.name))

    def _filters(self) -> list[inventory.Filter]:
        return of_cluster(self._spec.name, self._known_id())

    def _known_id(self) -> str | None:
        """Return the cluster's id as far as this machine knows it; makes none."""
        return self._adopted or self._home.read_facts().id

    def _machine(self, item: InventoryItem) -> Machine:
        described = item.described
        address = str(described.get("PrivateIpAddress", ""))
        launched, public = described.get("LaunchTime"), described.get("PublicIpAddress")
        return Machine(
            node=item.node,
            host=str(public or address),
            address=address,
            user=self._spec.ec2.user,
            key_file=self._spec.ec2.key_file,
            identity=item.identity,
            price_usd=self._price(described.get("InstanceType"), public=public is not None),
            since=launched.timestamp() if launched is not None else 0.0,
        )
