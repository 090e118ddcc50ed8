"""Launching the nodes: all in one zone, each exactly once, whatever happens in between.

    node 0 ──▶ refused for capacity? ──▶ the next zone
       │
    the others, at once ──▶ one refused? ──▶ those of this zone end, then the next zone
       │
    all run, with addresses

A node's launch carries a client token derived from cluster, node, zone and attempt, which makes it
idempotent: after a crash, the same call returns the same instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined

from drumline.cluster.providers import Reporter
from drumline.cluster.providers.ec2 import inventory
from drumline.cluster.providers.ec2.cloud import (
    AwsValues,
    Cloud,
    CloudWriter,
    error_kind,
    read_data,
    refusal,
)
from drumline.cluster.providers.ec2.inventory import Filter, InventoryItem, instances
from drumline.cluster.providers.ec2.offerings import Image, ZoneSubnet
from drumline.cluster.providers.ec2.removal import end_instances
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.keys import KeyPair
from drumline.core.errors import CloudError

USER_DATA_BYTES = 16_384
"""EC2 takes no more"""


def cloud_config(spec: ClusterSpec, *, authorized_key: str, host_key: KeyPair, hours: float) -> str:
    """Return the #cloud-config of an EC2 node that ends itself `hours` after its boot."""
    limits_script = resources.files("drumline.cluster.life").joinpath("limits.sh")
    template = Environment(undefined=StrictUndefined).from_string(read_data("cloud-config.yaml"))
    return template.render(
        user=spec.ec2.user,
        folder=f"/home/{spec.ec2.user}/drumline",
        authorized_key=authorized_key,
        host_key=host_key,
        limits_script=limits_script.read_text(),  # simulated nodes run the same one
        seconds=math.ceil(hours * 3600),
        idle="never" if spec.idle_minutes is None else f"{spec.idle_minutes:g}",
    )


MOVE_ON = ("capacity", "unsupported", "spot-price")
"""errors that another zone may not have"""
RUN_WITHIN_S = 600
_POLL_S = 2
_AT_ONCE = 8
_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Launches nodes; its fields are what exists before them, and holds for all of them."""

    writer: CloudWriter
    spec: ClusterSpec
    identity: str
    image: Image
    security_group: str
    key_name: str
    placement_group: str | None
    user_data: Callable[[int], str]
    """what a node is told at boot"""

    def launch(
        self, missing: Sequence[int], places: Sequence[ZoneSubnet], *, fixed: bool
    ) -> list[InventoryItem]:
        """Launch the missing nodes in the first zone that has room for all of them; return them.

        `fixed`: other nodes are there already, so that there is just the one zone.
        """
        refused: dict[str, CloudError] = {}
        # first the zone of a launch that may have arrived without our knowing
        intents = self.writer.journal.open_intents("run_instances")
        unsure = {str(intent.what.get("zone")) for intent in intents}
        for place in sorted(places, key=lambda place: place.zone not in unsure):
            try:
                return self._launch_in(missing, place)
            except CloudError as error:
                if error_kind(error) not in MOVE_ON:
                    raise
                refused[place.zone] = error
                self.writer.report(place.zone, f"refused: {error.fields['code']}")
                if not fixed:
                    self._end_those_of(missing, place)
        last = next(reversed(refused.values()))
        if len(refused) == 1:
            raise last
        told = ", ".join(f"{zone}: {error.fields['code']}" for zone, error in refused.items())
        raise CloudError(
            f"no zone has {len(missing)} {self.spec.ec2.instance_type} ({told}). The last: "
            f"{last.message}",
            **last.fields,
        )

    def _launch_in(self, missing: Sequence[int], place: ZoneSubnet) -> list[InventoryItem]:
        used = {
            str(item.described.get("ClientToken", ""))
            for item in instances(self.writer.cloud, self._filters(), gone=True)
            if item.state not in inventory.LIVE
        }
        first, *others = missing
        leader = self._launch_one(first, place, used)
        pool = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="launch")
        try:
            # Every launch is waited for before any error is told: none is left on its way.
            futures = [pool.submit(self._launch_one, node, place, used) for node in others]
            errors = [error for future in futures if (error := future.exception()) is not None]
        finally:
            pool.shutdown(cancel_futures=True)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, CloudError))
        return [leader, *(future.result() for future in futures)]

    def _launch_one(self, node: int, place: ZoneSubnet, used: set[str]) -> InventoryItem:
        """Launch one node; where its token was used up by an instance that is gone, by the next."""
        request = self._request(node, place)
        for attempt in range(_ATTEMPTS):
            token = inventory.client_token(self.identity, node, place.zone, attempt)
            if token in used:
                continue
            try:
                answer = self.writer.call(
                    "run_instances",
                    {**request, "ClientToken": token},
                    note={"node": node, "zone": place.zone, "token": token},
                    result=lambda answer: {"instance": answer["Instances"][0]["InstanceId"]},
                    what=self.spec.ec2.instance_type,
                    zone=place.zone,
                )
            except CloudError as error:
                if error_kind(error) != "repeated":
                    raise
                made = instances(self.writer.cloud, [{"Name": "client-token", "Values": [token]}])
                if (there := next((item for item in made if item.live), None)) is None:
                    continue
            else:
                there = inventory.instance_item(answer["Instances"][0])
            if there.state in inventory.LIVE:
                self.writer.report(f"worker{node}", f"launched as {there.identity} in {place.zone}")
                return there
        raise refusal("launched-in-vain", node=node, attempts=_ATTEMPTS)

    def _end_those_of(self, missing: Sequence[int], place: ZoneSubnet) -> None:
        """End what this zone has given: a cluster is in one zone."""
        made = [
            item
            for item in instances(self.writer.cloud, self._filters())
            if item.live
            and item.node in missing
            and item.described["Placement"]["AvailabilityZone"] == place.zone
        ]
        if made:
            count = len(made)
            self.writer.report(place.zone, f"ending its {count} node(s): all must be in one zone")
            end_instances(self.writer, made)

    def _filters(self) -> list[Filter]:
        return inventory.of_cluster(self.spec.name, self.identity)

    def _request(self, node: int, place: ZoneSubnet) -> AwsValues:
        """Return the parameters of RunInstances for one node, but for its client token.

        It ends itself by shutting down (`terminate`), its disks end with it and are encrypted, its
        metadata service asks for a token (IMDSv2) and answers no further than the node itself, and
        all that comes of the request is tagged by it.
        """
        ec2, user_data = self.spec.ec2, self.user_data(node)
        if (size := len(user_data.encode())) > USER_DATA_BYTES:
            raise refusal("user-data", node=node, size=size, most=USER_DATA_BYTES)
        sizes = {**self.image.disks, self.image.root_device: ec2.disk_gb}
        disk = {"VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
        kinds = ["instance", "volume", "network-interface"]
        request: AwsValues = {
            "MinCount": 1,
            "MaxCount": 1,
            "ImageId": self.image.identity,
            "InstanceType": ec2.instance_type,
            "KeyName": self.key_name,
            "UserData": user_data,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {
                "HttpEndpoint": "enabled",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
            },
            "NetworkInterfaces": [
                {
                    "DeviceIndex": 0,
                    "SubnetId": place.subnet,
                    "Groups": [self.security_group],
                    "AssociatePublicIpAddress": place.public,
                    "DeleteOnTermination": True,
                }
            ],
            "BlockDeviceMappings": [
                {"DeviceName": device, "Ebs": {**disk, "VolumeSize": size}}
                for device, size in sizes.items()
            ],
        }
        if self.placement_group is not None:
            request["Placement"] = {"GroupName": self.placement_group}
        if ec2.instance_profile is not None:
            key = "Arn" if ec2.instance_profile.startswith("arn:") else "Name"
            request["IamInstanceProfile"] = {key: ec2.instance_profile}
        if ec2.spot:  # once, and gone when the market takes it back
            kinds.append("spot-instances-request")
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if ec2.max_price_usd is not None:
                options["MaxPrice"] = f"{ec2.max_price_usd:.6f}".rstrip("0").rstrip(".")
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        tags = inventory.tag_specifications(kinds, self.spec.name, self.identity, node)
        return {**request, "TagSpecifications": tags}


def wait_running(
    cloud: Cloud, filters: Sequence[Filter], expected: Mapping[int, str], report: Reporter
) -> list[InventoryItem]:
    """Wait until the EC2 instances of all nodes run; returns the instances that exist then.

    `expected`: which instance each node is; EC2's listings may not show it yet.
    """
    told: dict[int, str] = {}
    for _ in range(RUN_WITHIN_S // _POLL_S):
        existing = {one.identity: one for one in instances(cloud, filters, gone=True)}
        refuse_stopped([one for one in existing.values() if one.identity in expected.values()])
        states = {}
        for node, identity in expected.items():
            there = existing.get(identity)
            states[node] = "coming" if there is None else there.state
            if there is not None and not there.live:
                reason = there.described.get("StateReason", {})
                code = str(reason.get("Code", ""))
                why = reason.get("Message") or "EC2 gives no reason"
                if "InsufficientInstanceCapacity" in code:
                    raise refusal("ended-for-capacity", node=node, item=there, why=why, code=code)
                raise refusal("ended-at-once", node=node, item=there, why=why, code=code)
        for node, state in states.items():
            if told.get(node) != state:
                report(f"worker{node}", state)
        told = states
        if all(state == "running" for state in states.values()):
            return [item for item in existing.values() if item.live]
        cloud.sleep(_POLL_S)
    late = ", ".join(f"worker{node} is {state}" for node, state in told.items())
    raise refusal("not-running", seconds=RUN_WITHIN_S, late=late)


def places_of(places: Sequence[ZoneSubnet], there: Mapping[int, InventoryItem]) -> list[ZoneSubnet]:
    """Return the availability zone and subnet of the EC2 instances that exist already."""
    first = there[min(there)].described
    zone, subnet = first["Placement"]["AvailabilityZone"], first.get("SubnetId", "")
    vpc, public = first.get("VpcId", ""), "PublicIpAddress" in first
    same = [place for place in places if place.subnet == subnet]
    return same or [ZoneSubnet(zone=zone, subnet=subnet, vpc=vpc, public=public)]


def by_node(existing: Sequence[InventoryItem]) -> dict[int, InventoryItem]:
    """Return the live EC2 instances by node; the elder where a node has two."""
    live = [item for item in existing if item.kind == "instance" and item.live]
    live.sort(key=lambda item: str(item.described.get("LaunchTime", "")), reverse=True)
    return {item.node: item for item in live}


def refuse_stopped(existing: Sequence[InventoryItem]) -> None:
    """Refuse EC2 instances that somebody has stopped: their disks are not ours to give up."""
    stopped = [one for one in existing if one.kind == "instance" and one.state in inventory.STOPPED]
    if stopped:
        names = ", ".join(f"worker{one.node} ({one.identity}) is {one.state}" for one in stopped)
        ids = " ".join(one.identity for one in stopped)
        raise refusal("stopped", names=names, ids=ids, node=stopped[0].node)
