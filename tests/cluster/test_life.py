"""The whole life of a cluster at EC2, by the command line, against machines that really run.

The cloud is a stand-in that answers over HTTP, its instances are simulated nodes with real SSH
servers, and the laptop is in a network of its own. One cluster of two nodes serves all tests here;
the last one removes it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import boto3
import pytest
from ec2_machines import LAPTOP, Ec2Machines
from ec2_stand_in import Ec2StandIn
from standing_lab import (
    SECRETS,
    Lab,
    job_phases,
    look_for_secrets,
    newest_job,
    processes_of_laptop,
    tree,
)
from twins import make_key, need_twins

from drumline.cluster.files.storage import fetch_run
from drumline.cluster.ssh.keys import Origin, read_pins
from sshd import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCAN = """
import socket, struct, sys
for port in range(1, 65536):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 2, 0))
        if sock.connect_ex((sys.argv[1], port)) == 0:
            print(port)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory, stand_in: Ec2StandIn):
    need_twins()
    stand_in.reset()
    stand_in.pending_looks, stand_in.ending_looks, stand_in.listing_lag = 1, 1, 0
    folder = tmp_path_factory.mktemp("life")
    machines = Ec2Machines(folder / "machines", stand_in, check_s=1.0)
    with pytest.MonkeyPatch.context() as patch, machines.running():
        here = {**stand_in.environment(), "AWS_SECRET_ACCESS_KEY": SECRETS[0]}
        for name, value in here.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        stand_in.calls.clear()
        lab = Lab(folder, machines, patch)
        lab.up()
        yield lab
        lab.drumline.close()
        if stand_in.living():
            lab.drumline("down", "--no-pull", code=None)


def test_up_makes_what_was_planned_and_once_more_nothing(lab):
    kinds = [resource["kind"] for resource in lab.plan["resources"]]
    assert kinds == ["key-pair", "security-group", "placement-group", "instance", "instance"]
    assert lab.plan["most_usd"] == pytest.approx(lab.plan["price_usd"] * 8)
    left, actions = lab.after_plan
    assert left == []
    assert all(action.startswith(("Describe", "Get")) for action in actions), actions
    assert (lab.first["made"], lab.first["provisioned"]) == ([*["worker0", "worker1"]],) * 2
    assert (lab.again["made"], lab.again["provisioned"]) == ([], [])
    assert lab.again["nodes"] == lab.first["nodes"]
    assert lab.again["deadline"] == lab.first["deadline"]
    assert all(action.startswith("Describe") for action in lab.calls_again), lab.calls_again
    assert [node["host"] for node in lab.first["nodes"]] == [
        node["address"].replace("10.77.", "10.78.") for node in lab.first["nodes"]
    ]


def test_ec2_lets_nobody_else_in(lab):
    """The group's rules, metadata by IMDSv2 alone, and host keys that only the nodes know."""
    groups = boto3.client("ec2").describe_security_groups()["SecurityGroups"]
    (group,) = (one for one in groups if one["GroupName"] != "default")
    rules = [
        (
            rule["IpProtocol"],
            rule.get("FromPort"),
            rule.get("ToPort"),
            [entry["CidrIp"] for entry in rule["IpRanges"]],
            [entry["GroupId"] for entry in rule["UserIdGroupPairs"]],
            rule.get("Ipv6Ranges", []) + rule.get("PrefixListIds", []),
        )
        for rule in group["IpPermissions"]
    ]
    assert sorted(rules) == [
        ("-1", None, None, [], [group["GroupId"]], []),
        ("tcp", 22, 22, [f"{LAPTOP}/32"], [], []),
    ]
    for instance in lab.aws.living():
        options = instance.metadata_options
        assert options.http_tokens == "required"
        assert options.http_put_response_hop_limit == 1
        assert [one.id for one in instance.security_groups] == [group["GroupId"]]
    scanned = subprocess.run(
        [*lab.drumline.enter, "ssh-keyscan", "-T", "20", *lab.hosts],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    shown = {line.split()[0]: " ".join(line.split()[1:3]) for line in scanned}
    for node, (identity, host) in enumerate(zip(lab.ids, lab.hosts, strict=True)):
        injected = lab.machines.user_data[identity]["ssh_keys"]["ed25519_public"]
        (pin,) = read_pins(lab.home, node)
        assert pin.origin is Origin.MADE_THERE
        assert pin.key == shown[host] != " ".join(injected.split()[:2])
        assert not any(secret in str(lab.machines.user_data[identity]) for secret in SECRETS)
    assert not list(lab.home.ssh.glob("host-keys/*")), "the laptop has forgotten the injected ones"


def test_mnist_is_trained_over_both_nodes(lab):
    """A Lightning script and a spec, one after the other; logs, results, and a copy in S3."""
    script = "lightning_hydra/ddp_train_example.py"
    words = (
        "max_epochs=1",
        "batch=128",
        "lr=0.2",
        "num_nodes=2",
        "strategy=ddp",
        "accelerator=cpu",
    )
    answer = lab.drumline("submit", "--detach", "--", script, *words)
    lightning = lab.lightning = re.search(r"logs -f (\S+)", answer.err)[1]
    answer = lab.drumline("submit", "--", "mnist.yaml", "epochs=2")
    assert "drumline pull copies it from here instead" in answer.err, "nodes have no credentials"
    first, second = lab.jobs()
    assert (first["id"], first["state"]["phase"]) == (lightning, "done")
    assert second["state"]["phase"] == "done"
    assert second["state"]["started"] >= first["state"]["ended"], "one after the other"
    answer = lab.drumline("logs", "-f", lightning)
    accuracy = float(re.search(r"\[0\] test accuracy ([\d.]+)%, world size 2", answer.out)[1])
    assert accuracy > 50
    assert "world size" not in lab.drumline("logs", lightning, "--rank", "1").out

    lab.drumline("pull")
    run = lab.drumline.project / "runs" / second["id"] / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["accuracy"] > 0.5, summary
    assert summary["world_size"] == 2
    assert {path.name for path in (run / "events").iterdir()} >= {"rank-0.jsonl", "rank-1.jsonl"}
    copy = fetch_run("s3://bucket/runs", second["id"], lab.home.path / "copy")
    assert tree(copy) == tree(run)
    assert any("checkpoint" in name for name in tree(run))
    shutil.rmtree(copy)
    assert not any(secret.encode() in text for text in tree(run).values() for secret in SECRETS)


def test_strangers_find_ssh_alone_and_a_cut_is_survived(lab):
    """While a job runs and Jupyter is up: pages through tunnels, nothing else for anybody.

    The laptop loses its network meanwhile, and goes on with the job's output when it is back.
    """
    job = lab.drumline.start("submit", "--", "long.py")
    tunnels = [lab.drumline.start(name, "--no-browser") for name in ("jupyter", "tensorboard")]
    try:
        url, board = (one.wait_for("http://127.0.0.1:").strip() for one in tunnels)
        token = url.partition("token=")[2]
        assert len(token) > 30
        lab.tokens.append(token)
        assert lab.drumline.fetch(url)[0] == 200
        assert lab.drumline.fetch(url.replace("/lab?", "/api/status?"))[0] == 200
        assert lab.drumline.fetch(url.partition("/lab")[0] + "/api/contents")[0] == 403
        assert "login" in lab.drumline.fetch(url.partition("?")[0])[1]
        assert lab.drumline.fetch(board)[0] == 200
        job.wait_for("[1] step 3")
        look_for_secrets(lab, [*SECRETS, token])
    finally:
        for tunnel in tunnels:
            tunnel.end()
    lab.machines.twin.control.ask("cut", name="laptop")
    try:
        scans = [
            subprocess.Popen(
                [*lab.machines.twin.enter("outside"), sys.executable, "-ISc", SCAN, host],
                stdout=subprocess.PIPE,
                text=True,
            )
            for host in lab.hosts
        ]
        assert [scan.communicate(timeout=120)[0].split() for scan in scans] == [["22"], ["22"]]
        assert job_phases(lab) == ["running", "running"]
        job.wait_for("connecting again", 120)
    finally:
        lab.machines.twin.control.ask("heal", name="laptop")
    seen = len(job.lines)
    wait_until(lambda: len(job.lines) > seen + 8, "the output goes on", 90)
    (lab.folder_of(0) / "drumline" / "jobs" / newest_job(lab) / "work" / "enough").touch()
    assert job.wait() == 0, job.text
    for rank in (0, 1):
        lines = [line for line in job.lines if line.startswith(f"[{rank}] ")]
        steps = [int(line.split()[2]) for line in lines if "step" in line]
        assert steps == list(range(len(steps))), "each line once, in order"
        assert lines[-1] == f"[{rank}] that was all\n"
    look_for_secrets(lab, [*SECRETS, *lab.tokens])


def test_an_impostor_is_refused(lab):
    """Somebody else answers at worker1's address: nobody signs in there, and nothing is sent."""
    twin = lab.machines.twin
    name = lab.machines.name_of(lab.ids[1])
    twin.control.ask("cut", name=name)
    try:
        order = lab.machines.orders[lab.ids[1]]
        client = order.public_keys
        own = make_key(twin.keys, "impostor")[0]
        more = {"host_key": own, "public_keys": client, "user": order.user, "routes": order.routes}
        impostor = twin.order("impostor", *order.addresses, **more)
        twin.control.add([impostor])
        answer = lab.drumline("submit", "--", "long.py", code=1)
        assert re.search(r"worker1 \(10\.78\.1\.\d+\): .*impostor", answer.err), answer.err
        answer = lab.drumline("ssh", "worker1", "touch", "here", code=255)
        assert "Host key verification failed" in answer.err
        assert list((impostor.path / "drumline").iterdir()) == []
        assert list((impostor.path / "home").iterdir()) == []
        assert "Accepted" not in (impostor.path / "node.log").read_text()
    finally:
        if "impostor" in lab.machines.states():
            twin.remove("impostor")
        twin.control.ask("heal", name=name)
    assert lab.drumline("ssh", "worker1", "hostname").out.strip() == name


def test_its_end_moves_and_others_can_use_it(lab):
    before = lab.first["deadline"]
    assert lab.drumline.json("extend", "90m", "--json")["deadline"] == before + 5400
    for node in range(2):
        deadline = (lab.folder_of(node) / "drumline" / "limits" / "deadline").read_text()
        assert float(deadline) == pytest.approx(before + 5400, abs=1)
    inventory = lab.drumline.json("inventory", "--list")
    assert inventory["leader"]["hosts"] == ["worker0"]
    assert set(inventory["_meta"]["hostvars"]) == {"worker0", "worker1"}


def test_down_leaves_nothing(lab):
    """Neither at EC2 nor here, although one node has ended itself before: its time was up."""
    lab.drumline("ssh", "worker0", "true")  # OpenSSH keeps its connection for a while
    (lab.folder_of(1) / "drumline" / "limits" / "deadline").write_text("1\n")
    name = lab.machines.name_of(lab.ids[1])
    wait_until(lambda: lab.machines.states()[name] == "ended", "worker1 powers itself off", 30)
    lab.machines.notice()
    assert [one.id for one in lab.aws.living()] == [lab.ids[0]]
    receipt = lab.drumline.json("down", "--json")
    assert receipt["left"] == []
    assert [line["node"] for line in receipt["lines"]] == ["worker0", "worker1"]
    assert all(line["hours"] * line["price_usd"] > 0 for line in receipt["lines"])
    kinds = {one["kind"] for one in receipt["removed"]}
    assert kinds >= {"instance", "security-group", "placement-group", "key-pair", "volume"}
    assert lab.aws.left() == []
    states = lab.machines.states()
    assert set(states) - {name} == {"laptop", "outside"}, states
    assert not lab.home.ssh.exists()
    (kept,) = (lab.drumline.home / "receipts").iterdir()
    assert json.loads(kept.read_text()) == receipt
    wait_until(
        lambda: not processes_of_laptop(lab), f"no process left: {processes_of_laptop(lab)}", 30
    )

    policy = lab.drumline.json("iam-policy")
    allowed = {action for part in policy["Statement"] for action in part["Action"]}
    called = {call.iam for call in lab.aws.calls if call.service != "s3"}
    assert "ec2:RunInstances" in called
    assert called <= allowed, called - allowed
    if lab.lightning:
        assert "world size 2" in lab.drumline("logs", lab.lightning).out, (
            "logs that were pulled stay readable"
        )
