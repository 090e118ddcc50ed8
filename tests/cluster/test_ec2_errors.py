"""Each way in which AWS refuses has its kind, its sentence, and its way out; nothing is created."""

from __future__ import annotations

import ast
from importlib.resources import files

import pytest
from ec2_lists import IMAGE, REGION

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers.ec2.cloud import kind_of, known_errors, open_session, refusal
from drumline.cluster.providers.ec2.inventory import InventoryItem
from drumline.cluster.providers.ec2.offerings import Image, TypeFacts
from drumline.cluster.providers.ec2.provider import Ec2Provider
from drumline.cluster.spec import ClusterSpec, Ec2Spec
from drumline.core.errors import CloudError


def quiet(who: str, what: str) -> None:
    pass


def refused(attempt) -> CloudError:
    with pytest.raises(CloudError) as caught:
        attempt()
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("action", "code", "message", "kind", "words"),
    [
        (
            "RunInstances",
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient capacity.",
            "capacity",
            ["no g4dn.xlarge left in us-east-1a", "ec2.region", "ec2.zones", "instance_type"],
        ),
        (
            "RunInstances",
            "VcpuLimitExceeded",
            "You have requested more vCPU capacity than your current limit of 0 allows.",
            "quota",
            ["quota", "limit of 0", "Service Quotas", "fewer nodes"],
        ),
        (
            "RunInstances",
            "MaxSpotInstanceCountExceeded",
            "Max spot instance count exceeded",
            "quota",
            ["Service Quotas"],
        ),
        (
            "RunInstances",
            "UnauthorizedOperation",
            "You are not authorized to perform this operation. User: arn:aws:iam::1:user/x is not "
            "authorized to perform: iam:PassRole on resource: y. Encoded authorization failure "
            "message: AAAABBBB",
            "permission",
            ["may not do iam:PassRole", "drumline iam-policy"],
        ),
        (
            "CreatePlacementGroup",
            "UnauthorizedOperation",
            "You are not authorized to perform this operation.",
            "permission",
            ["may not do ec2:CreatePlacementGroup", "drumline iam-policy"],
        ),
        ("DescribeInstances", "ExpiredToken", "", "expired", ["expired", "aws sso login"]),
        ("CreateSecurityGroup", "RequestExpired", "", "expired", ["clock", "it continues"]),
        (
            "DescribeInstances",
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
            "credentials",
            ["does not accept your credentials", "enabled for the account"],
        ),
        (
            "RunInstances",
            "Unsupported",
            "Your requested instance type is not supported in your requested Availability Zone",
            "unsupported",
            ["g4dn.xlarge cannot be had in us-east-1a", "ec2.zones"],
        ),
        (
            "RunInstances",
            "SpotMaxPriceTooLow",
            "Your Spot request price of 0.01 is lower than the minimum required 0.158",
            "spot-price",
            ["minimum required 0.158", "ec2.max_price_usd", "spot: false"],
        ),
        (
            "RunInstances",
            "RequestLimitExceeded",
            "Request limit exceeded.",
            "throttling",
            ["ec2:RunInstances", "several tries", "it continues"],
        ),
        (
            "RunInstances",
            "PendingVerification",
            "Your account is currently being verified",
            "account",
            ["has not opened your account", "being verified"],
        ),
        (
            "RunInstances",
            "InsufficientFreeAddressesInSubnet",
            "There are not enough free addresses",
            "network",
            ["ec2.subnet"],
        ),
        ("RunInstances", "InternalError", "An internal error", "server", ["AWS itself failed"]),
        (
            "CreateSecurityGroup",
            "SomethingNew",
            "nobody has seen this",
            "other",
            ["ec2:CreateSecurityGroup", "SomethingNew: nobody has seen this"],
        ),
    ],
)
def test_refusals_over_http(aws, ec2_cluster, action, code, message, kind, words):
    aws.refuse(action, code, message, times=99)
    cluster = ec2_cluster(ec2={"zones": [f"{REGION}a"]})
    error = refused(lambda: cluster.create(quiet))
    assert error.fields["kind"] == kind
    assert error.fields["code"] == code
    assert error.exit_code == 1
    for word in words:
        assert word in error.message
    assert "AAAABBBB" not in error.message
    assert aws.living() == []


def test_throttling_that_ends_is_not_seen(aws, ec2_cluster):
    aws.refuse("RunInstances", "RequestLimitExceeded", times=3)
    assert len(ec2_cluster().create(quiet)) == 2
    assert len(aws.living()) == 2


def test_a_node_that_ends_at_once_says_why(aws, ec2_cluster):
    aws.pending_looks = 9

    def fail(facts) -> None:
        from moto.ec2.models.instances import InstanceState, StateReason

        instance = aws.backend().get_instance(facts["id"])
        instance._state = InstanceState("terminated", 48)
        message = "Client.VolumeLimitExceeded: Volume limit exceeded"
        instance.state_reason = StateReason(message, "Client.VolumeLimitExceeded")
        aws.looks.pop(instance.id)

    aws.on_launch.append(fail)
    error = refused(lambda: ec2_cluster(nodes=1).create(quiet))
    assert "worker0" in error.message
    assert "Volume limit exceeded" in error.message


def test_nodes_that_never_run_are_named(aws, ec2_cluster):
    aws.pending_looks = 10_000
    from drumline.cluster.providers.ec2 import launch

    nodes_within = launch.RUN_WITHIN_S
    try:
        launch.RUN_WITHIN_S = 8
        error = refused(lambda: ec2_cluster().create(quiet))
    finally:
        launch.RUN_WITHIN_S = nodes_within
    assert "worker0 is pending, worker1 is pending" in error.message
    assert error.fields["kind"] == "timeout"


def provider(ec2: dict, **environment) -> Ec2Provider:
    spec = ClusterSpec.model_validate(
        {
            "name": "lab",
            "provider": "ec2",
            "ec2": {"allow_from": "203.0.113.7/32", "ami": IMAGE, **ec2},
        }
    )
    home = ClusterHome.of("lab")
    return Ec2Provider(spec, home, sleep=lambda seconds: None)


def test_no_credentials(aws, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = refused(lambda: provider({}).create(quiet))
    assert error.fields["kind"] == "credentials"
    assert "aws configure" in error.message


def test_half_of_the_credentials(aws, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert refused(lambda: provider({}).create(quiet)).fields["kind"] == "credentials"


def test_an_unknown_profile(aws):
    error = refused(lambda: open_session(profile="nobody"))
    assert error.fields["kind"] == "credentials"
    assert "nobody" in error.message
    assert "list-profiles" in error.message


def test_no_region(aws, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    error = refused(lambda: provider({}).plan())
    assert error.fields["kind"] == "region"
    assert "region: us-east-1" in error.message


def test_a_region_that_does_not_answer(aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    from drumline.cluster.providers.ec2 import cloud

    monkeypatch.setattr(cloud, "_PATIENT", cloud._ONCE)
    error = refused(lambda: provider({"region": "eu-nowhere-9"}).plan())
    assert error.fields["kind"] == "region"
    assert "does not answer in region eu-nowhere-9" in error.message
    assert "ec2.region" in error.message
    error = refused(lambda: provider({"region": "not a region"}).plan())
    assert error.fields["kind"] == "region"


@pytest.mark.parametrize(
    ("ec2", "kind", "words"),
    [
        ({"instance_type": "g99.huge"}, "unsupported", "has no machine type 'g99.huge'"),
        ({"zones": ["us-east-1z"]}, "network", "names us-east-1z, where there is no subnet"),
        ({"instance_type": "g4dn.xlarge", "zones": ["us-east-1e"]}, "unsupported", "no zone"),
        ({"subnet": "subnet-0000000000000000"}, "network", "no such subnet"),
        ({"vpc": "vpc-0000"}, "network", "has no subnets"),
        ({"ami": "ami-00000000"}, "image", "has no image ami-00000000"),
        ({"ami": "/aws/service/deeplearning/nothing"}, "image", "no such SSM parameter"),
        ({"ami": "ubuntu"}, "image", "no such SSM parameter"),
        ({"instance_type": "g5g.xlarge"}, "image", "is for x86_64, but g5g.xlarge is arm64"),
        ({"instance_type": "p3dn.24xlarge", "ami": "auto"}, "image", "does not drive the GPUs"),
        ({"disk_gb": 8}, "image", "needs 15; write disk_gb: 15"),
        ({"allow_from": "everybody"}, "network", "which is no network"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_exists(aws, ec2_cluster, ec2, kind, words):
    error = refused(lambda: ec2_cluster(ec2=ec2).create(quiet))
    assert words in error.message
    assert error.fields["kind"] == kind
    assert aws.left() == []
    assert not ClusterHome.of("lab").path.exists(), "no folder for what does not exist"


def test_no_code_is_of_two_kinds():
    codes = [code for kind in known_errors().answered.values() for code in kind.codes]
    assert len(codes) == len(set(codes))
    assert kind_of("Client.InstanceLimitExceeded") == "quota"
    assert kind_of("InvalidGroup.NotFound") == "not-found"
    assert kind_of("InvalidKeyPair.Duplicate") == "duplicate"
    assert kind_of("Nonsense") == "other"


HOLES = {
    "ec2": Ec2Spec(),
    "spec": ClusterSpec(budget_usd=1.0),
    "facts": TypeFacts(architecture="arm64", placement=True),
    "image": Image(identity="ami-1", name="x", architecture="x", root_device="sda", disks={}),
    "item": InventoryItem(kind="volume", identity="vol-1"),
}
"""what sentences take apart; all else that the code gives them is a text or a number"""


def test_every_refusal_of_ours_has_its_sentence_and_every_sentence_its_use():
    given: dict[str, set[str]] = {}
    for file in files("drumline.cluster.providers.ec2").iterdir():
        for call in ast.walk(ast.parse(file.read_text() if file.name.endswith(".py") else "")):
            function = getattr(getattr(call, "func", None), "id", "")
            if function in ("refusal", "_explained") and isinstance(call.args[0], ast.Constant):
                values = {each.arg for each in call.keywords}
                values |= {"code", "action"} if function == "_explained" else set()
                name = call.args[0].value
                given[name] = given.get(name, values) & values
    sentences = {name: known.sentence for name, known in known_errors().refused.items()}
    assert given.keys() == sentences.keys()
    for name, sentence in sentences.items():
        values = {key: HOLES.get(key, 1.5) for key in given[name]}
        sentence.format(**values)  # every hole is filled, or this raises


def test_an_error_keeps_plain_values_alone():
    error = refusal("image-disk", image=HOLES["image"], ec2=HOLES["ec2"], least=200)
    assert error.fields == {"kind": "image", "least": 200}
    assert "the image ami-1 (x) needs 200; write disk_gb: 200" in error.message
