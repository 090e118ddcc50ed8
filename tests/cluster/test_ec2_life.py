"""A cluster at EC2 from nothing to nothing, against a stand-in that answers over HTTP."""

from __future__ import annotations

import json
import urllib.request

import pytest
from ec2_lists import IMAGE, REGION

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers.ec2.offerings import find_own_address
from drumline.cluster.providers.ec2.removal import all_regions, reap
from drumline.cluster.ssh.keys import host_key
from drumline.core.errors import CloudError


def quiet(who: str, what: str) -> None:
    pass


def actions(aws) -> list[str]:
    return [call.action for call in aws.calls]


def requests(aws, action: str) -> list[dict]:
    return [call.params for call in aws.calls if call.action == action]


def own_groups(aws) -> list:
    every = [group for held in aws.backend().groups.values() for group in held.values()]
    return [group for group in every if group.name != "default"]


def test_from_nothing_to_nothing(aws, ec2_cluster):
    aws.pending_looks, aws.ending_looks = 2, 2
    launched, ended, said = [], [], []
    aws.on_launch.append(launched.append)
    aws.on_end.append(ended.append)
    cluster = ec2_cluster(nodes=3)
    plan = cluster.plan()
    assert not {call.action for call in aws.calls} & {"RunInstances", "CreateSecurityGroup"}
    assert [one.kind for one in plan.resources] == [
        "key-pair",
        "security-group",
        "placement-group",
        *["instance"] * 3,
    ]
    assert plan.most_usd == pytest.approx(8 * 3 * (0.526 + 0.005 + 100 * 0.08 / 730))

    machines = cluster.create(lambda who, what: said.append((who, what)))
    assert [machine.node for machine in machines] == [0, 1, 2]
    assert len({machine.address for machine in machines}) == 3
    assert all(machine.host != machine.address for machine in machines)
    assert cluster.machines() == machines
    assert sorted(fact["tags"]["drumline:node"] for fact in launched) == ["0", "1", "2"]
    second = next(fact for fact in launched if fact["tags"]["drumline:node"] == "1")
    assert host_key(ClusterHome.of("lab"), 1).public.strip() in second["user_data"]
    assert ("worker1", "pending") in said
    assert ("worker1", "running") in said
    assert cluster.plan().resources == ()
    assert len(cluster.plan().exists) == 3 * 3 + 3

    aws.calls.clear()
    assert cluster.create(quiet) == machines, "a second time changes nothing"
    assert all(action.startswith("Describe") for action in actions(aws))

    cluster.remove(lambda who, what: said.append((who, what)))
    assert cluster.resources() == []
    assert aws.left() == []
    assert len(ended) == 3
    assert ("worker2", "ended") in said
    cluster.remove(quiet)


def test_what_is_asked_of_ec2(aws, ec2_cluster):
    """Rules, metadata options, disks, and tags on everything in the request that makes it."""
    ec2_cluster(ec2={"instance_profile": None}).create(quiet)
    backend = aws.backend()
    (group,) = own_groups(aws)
    rules = {
        (rule.ip_protocol, rule.from_port, rule.to_port, str(rule.ip_range), str(rule.source_group))
        for rule in group.ingress_rules
    }
    assert len(rules) == 2
    text = str(rules)
    assert "203.0.113.7/32" in text
    assert group.id in text
    assert "0.0.0.0/0" not in text
    for instance in aws.living():
        assert instance.metadata_options.http_tokens == "required"
        assert instance.metadata_options.http_put_response_hop_limit == 1
        assert instance.instance_initiated_shutdown_behavior == "terminate"
        assert instance.placement.group_name in aws.groups
        assert instance.image_id == IMAGE
        assert all(disk.delete_on_termination for disk in instance.block_device_mapping.values())
    for volume in backend.volumes.values():
        assert volume.encrypted
        assert volume.volume_type == "gp3"
    assert {one.availability_zone for one in aws.living()} == {f"{REGION}a"}

    made = {"RunInstances", "CreateSecurityGroup", "CreatePlacementGroup", "ImportKeyPair"}
    assert "CreateTags" not in actions(aws), "tags come with the thing, not after it"
    for call in aws.calls:
        if call.action in made:
            words = json.dumps(call.params)
            assert "drumline:cluster" in words
            assert "drumline:id" in words
    asked = requests(aws, "RunInstances")[0]
    kinds = {v for k, v in asked.items() if k.endswith(".ResourceType")}
    assert kinds == {"instance", "volume", "network-interface"}
    ids = [resource.identity for resource in ec2_cluster().resources()]
    assert len(ids) == 2 * 3 + 3, "instances, disks and interfaces are found by their tags"


def test_a_single_node_and_types_that_cannot_have_no_placement_group(aws, ec2_cluster):
    one = ec2_cluster(nodes=1)
    one.create(quiet)
    assert aws.groups == {}
    one.remove(quiet)
    small = ec2_cluster(name="small", ec2={"instance_type": "t3.micro"})
    assert any("placement group" in note for note in small.plan().notes)
    small.create(quiet)
    assert aws.groups == {}


@pytest.mark.parametrize("given", ["subnet", "vpc"])
def test_a_network_of_ones_own(aws, ec2_cluster, given):
    zone = f"{REGION}b"
    where = {"subnet": aws.subnets[zone]} if given == "subnet" else {"vpc": aws.vpc}
    cluster = ec2_cluster(ec2=where)
    machines = cluster.create(quiet)
    net = "10.77.2." if given == "subnet" else "10.77.1."
    assert all(machine.address.startswith(net) for machine in machines)
    assert all(machine.host == machine.address for machine in machines), "it has no public ones"
    assert any("no public addresses" in note for note in cluster.plan().notes)


def test_the_newest_deep_learning_image_is_found(aws, ec2_cluster):
    cluster = ec2_cluster(nodes=1, ec2={"ami": "auto"})
    cluster.create(quiet)
    assert requests(aws, "RunInstances")[0]["ImageId"] == IMAGE
    assert len(requests(aws, "GetParametersByPath")) == 2, "all pages are read"
    cluster.remove(quiet)
    name = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04"
    ec2_cluster(nodes=1, ec2={"ami": f"{name}/latest/ami-id"}).create(quiet)
    assert requests(aws, "RunInstances")[1]["ImageId"] == "ami-1e749f67"


def test_spot(aws, ec2_cluster):
    cluster = ec2_cluster(nodes=1, ec2={"spot": True, "max_price_usd": 0.2}, max_hours=2)
    plan = cluster.plan()
    assert any("spot now" in note for note in plan.notes)
    assert plan.price_usd == pytest.approx(0.2 + 0.005 + 100 * 0.08 / 730), "the most it can cost"
    cluster.create(quiet)
    asked = requests(aws, "RunInstances")[0]
    assert asked["InstanceMarketOptions.MarketType"] == "spot"
    assert asked["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.2"
    assert asked["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert "spot-instances-request" in asked.values()
    assert "spot" in cluster.resources()[0].detail


def test_the_next_zone_is_tried_when_one_is_short(aws, ec2_cluster):
    """Also after some nodes were launched there: all must be in one zone."""
    aws.ending_looks = 1
    aws.refuse("RunInstances", "InsufficientInstanceCapacity", nth=2)
    cluster = ec2_cluster(nodes=3, ec2={"zones": [f"{REGION}c", f"{REGION}b"]})
    machines = cluster.create(quiet)
    assert {one.availability_zone for one in aws.living()} == {f"{REGION}b"}
    assert len(machines) == len(aws.living()) == 3
    cluster.remove(quiet)
    assert aws.left() == []


def test_no_zone_has_any(aws, ec2_cluster):
    aws.refuse("RunInstances", "InsufficientInstanceCapacity", times=99)
    cluster = ec2_cluster(ec2={"zones": [f"{REGION}a", f"{REGION}b"]})
    with pytest.raises(CloudError) as refusal:
        cluster.create(quiet)
    assert refusal.value.fields["kind"] == "capacity"
    assert f"{REGION}a: Insufficient" in refusal.value.message
    assert f"{REGION}b: Insufficient" in refusal.value.message
    assert actions(aws).count("RunInstances") == 2, "one try in each zone"
    cluster.remove(quiet)
    assert aws.left() == []


def test_a_lost_node_is_replaced(aws, ec2_cluster):
    """Its token was used up by the instance that is gone."""
    cluster = ec2_cluster()
    before = cluster.create(quiet)
    aws.backend().terminate_instances([before[1].identity])
    after = cluster.create(quiet)
    assert after[0] == before[0]
    assert after[1].identity != before[1].identity
    aws.backend().terminate_instances([after[1].identity])
    reservations = aws.backend().reservations
    for key, reservation in list(reservations.items()):  # an hour later nobody lists the dead
        if reservation.instances[0].state == "terminated":
            del reservations[key]
    assert len(cluster.create(quiet)) == 2
    assert len(aws.living()) == 2


def test_a_lost_answer_makes_no_second_node(aws, ec2_cluster):
    aws.refuse("RunInstances", "-", nth=1, lost=True)
    cluster = ec2_cluster()
    with pytest.raises(CloudError) as lost:
        cluster.create(quiet)
    assert lost.value.fields["kind"] == "region"
    assert len(aws.living()) == 1
    assert len(cluster.create(quiet)) == 2
    assert len(aws.living()) == 2


def test_other_words_with_the_same_token_find_the_node(aws, ec2_cluster):
    """The spec was edited after a crash, and EC2 does not list what it has made yet."""
    cluster = ec2_cluster(nodes=1)
    cluster.create(quiet)
    hidden = dict(aws.backend().tags)
    for identity in [one.id for one in aws.living()]:
        aws.backend().tags[identity] = {}
    edited = ec2_cluster(nodes=1, ec2={"disk_gb": 200})
    launcher_saw = []

    def look(seconds: float) -> None:
        launcher_saw.append(seconds)
        aws.backend().tags.update(hidden)

    edited.cloud.sleep = look
    assert len(edited.create(quiet)) == 1
    assert launcher_saw, "it waited for the listing"
    assert len(aws.living()) == 1


def test_a_name_in_use_elsewhere(aws, ec2_cluster, tmp_path):
    ec2_cluster().create(quiet)
    elsewhere = ec2_cluster(home=ClusterHome(tmp_path / "other" / "lab"))
    for attempt in (elsewhere.plan, lambda: elsewhere.create(quiet)):
        with pytest.raises(CloudError, match=r"name 'lab' is in use.*another name.*down --id"):
            attempt()
    assert len(aws.living()) == 2
    with pytest.raises(CloudError, match="no cluster 'lab' with id 'beef'"):
        elsewhere.adopt("beef")
    elsewhere.adopt(ClusterHome.of("lab").cluster_id())
    assert len(elsewhere.create(quiet)) == 2


def test_two_of_one_name_are_not_removed_by_name(aws, ec2_cluster, tmp_path):
    ec2_cluster(nodes=1).create(quiet)
    ec2_cluster(nodes=1, name="lab2").create(quiet)
    for given in aws.backend().tags.values():
        if given.get("drumline:cluster") == "lab2":
            given["drumline:cluster"] = "lab"
    stranger = ec2_cluster(home=ClusterHome(tmp_path / "empty" / "lab"))
    with pytest.raises(CloudError, match="there are 2 clusters called 'lab'"):
        stranger.remove(quiet)
    assert len(aws.living()) == 2
    assert not (tmp_path / "empty").exists()


def test_fewer_nodes_than_there_are(aws, ec2_cluster):
    ec2_cluster(nodes=3).create(quiet)
    with pytest.raises(CloudError, match=r"has 3 nodes, but nodes is 2.*write nodes: 3"):
        ec2_cluster(nodes=2).create(quiet)
    assert len(ec2_cluster(nodes=4).create(quiet)) == 4, "more are added"


def test_who_has_moved_is_let_in_and_the_old_address_is_not(aws, ec2_cluster):
    ec2_cluster().create(quiet)
    ec2_cluster(ec2={"allow_from": "198.51.100.0/28"}).create(quiet)
    (group,) = own_groups(aws)
    ranges = str([rule.ip_range for rule in group.ingress_rules])
    assert "198.51.100.0/28" in ranges
    assert "203.0.113.7" not in ranges
    assert len(group.ingress_rules) == 2


def test_the_address_that_one_calls_from(aws, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert find_own_address(f"{aws.url}/stand-in/address") == "127.0.0.1"
    with pytest.raises(CloudError, match=r"allow_from: 203\.0\.113\.7/32"):
        find_own_address(f"{aws.url}/stand-in/calls")
    with pytest.raises(CloudError, match="cannot find the address"):
        find_own_address("http://127.0.0.1:1/")
    assert urllib.request.getproxies()["http"], "a proxy is in the way, and passed by"


def test_leftovers_are_removed_too(aws, ec2_cluster):
    """A disk or an interface that has survived its instance; a group with a stranger in it."""
    cluster = ec2_cluster()
    cluster.create(quiet)
    backend = aws.backend()
    tags = {"drumline:cluster": "lab", "drumline:id": ClusterHome.of("lab").cluster_id()}
    disk = backend.create_volume(size=8, zone_name=f"{REGION}a")
    disk.add_tags(tags)
    subnet = backend.get_subnet(aws.subnets[f"{REGION}a"])
    backend.create_network_interface(subnet, "10.77.1.99", tags=tags)
    aws.refuse("DeleteVolume", "IncorrectState", times=2)
    aws.refuse("DeleteNetworkInterface", "InvalidParameterValue", "it is currently in use")
    aws.refuse("DeleteSecurityGroup", "DependencyViolation", times=3)
    aws.refuse("DeletePlacementGroup", "InvalidPlacementGroup.InUse", times=2)
    said = []
    cluster.remove(lambda who, what: said.append(what))
    assert aws.left() == []
    assert any("is in use yet; waiting" in what for what in said)


def test_a_group_that_stays_in_use_is_told(aws, ec2_cluster, monkeypatch):
    monkeypatch.setattr("drumline.cluster.providers.ec2.removal.RELEASE_WITHIN_S", 9)
    cluster = ec2_cluster(nodes=1)
    cluster.create(quiet)
    aws.refuse("DeleteSecurityGroup", "DependencyViolation", times=999)
    with pytest.raises(CloudError, match=r"security-group sg-\w+ is in use after 9 s"):
        cluster.remove(quiet)


def test_one_that_is_gone_keeps_no_other_alive(aws, ec2_cluster):
    """EC2 refuses a whole request for one instance that it does not know any more."""
    cluster = ec2_cluster(nodes=3)
    gone = cluster.create(quiet)[1].identity

    def unknown(params: dict) -> bool:
        asked = gone in params.values()
        if asked and gone in [one.id for one in aws.living()]:
            aws.backend().terminate_instances([gone])
        return asked

    aws.refuse("TerminateInstances", "InvalidInstanceID.NotFound", times=99, where=unknown)
    cluster.remove(quiet)
    assert aws.left() == []


def test_one_that_cannot_be_removed_keeps_no_other(aws, ec2_cluster):
    """A node that somebody has protected; then a disk that EC2 does not give back."""
    cluster = ec2_cluster(nodes=3)
    kept = cluster.create(quiet)[1].identity
    aws.refuse(
        "TerminateInstances",
        "OperationNotPermitted",
        "has 'disableApiTermination' set",
        times=99,
        where=lambda params: kept in params.values(),
    )
    with pytest.raises(CloudError, match="disableApiTermination"):
        cluster.remove(quiet)
    assert [one.id for one in aws.living()] == [kept]
    aws.faults.clear()
    tags = {"drumline:cluster": "lab", "drumline:id": ClusterHome.of("lab").cluster_id()}
    disks = [aws.backend().create_volume(size=8, zone_name=f"{REGION}a") for _ in range(2)]
    for disk in disks:
        disk.add_tags(tags)
    stays = disks[0].id
    aws.refuse(
        "DeleteVolume", "UnauthorizedOperation", times=9, where=lambda p: stays in p.values()
    )
    with pytest.raises(CloudError, match="may not do ec2:DeleteVolume"):
        cluster.remove(quiet)
    assert aws.left() == [stays]


def test_a_node_that_somebody_has_stopped_is_named(aws, ec2_cluster):
    """It does not answer, but what is on its disk is not ours to give up."""
    cluster = ec2_cluster()
    stopped = cluster.create(quiet)[1].identity
    aws.backend().stop_instances([stopped])
    aws.calls.clear()
    words = rf"worker1 \({stopped}\) is stopped.*start-instances --instance-ids {stopped}"
    for attempt in (cluster.plan, lambda: cluster.create(quiet)):
        with pytest.raises(CloudError, match=words):
            attempt()
    assert all(action.startswith("Describe") for action in actions(aws))
    aws.backend().start_instances([stopped])
    assert [one.identity for one in cluster.create(quiet)][1] == stopped
    aws.backend().stop_instances([stopped])
    cluster.remove(quiet)
    assert aws.left() == []


def test_reap_removes_every_cluster_and_nothing_else(aws, ec2_cluster):
    ec2_cluster(nodes=1).create(quiet)
    ec2_cluster(nodes=1, name="other").create(quiet)
    backend = aws.backend()
    theirs = backend.create_volume(size=8, zone_name=f"{REGION}a")
    said = []
    session = aws.shared_session()
    removed = reap(session, lambda who, what: said.append(what), sleep=lambda seconds: None)
    assert {one.cluster for one in removed} == {"lab", "other"}
    assert aws.left() == [theirs.id]
    assert reap(session, quiet) == []


def test_all_regions(aws, ec2_cluster):
    regions = all_regions(ec2_cluster().cloud)
    assert {REGION, "eu-central-1"} <= set(regions)
