"""`ClusterSpec`: what `cluster.yaml` says: which machines, for how long, and what is on them.

Also which cluster a command means (./cluster.yaml, or a name), and what `drumline cluster init`
writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from drumline.cluster.home import ClusterHome, clusters_root
from drumline.core.errors import ClusterError, UsageError
from drumline.core.formatting import listed
from drumline.core.task import MAX_WORKERS
from drumline.spec.load import read_spec
from drumline.spec.parts import ClashError, LinkSpec, SpecPart

P = TypeVar("P", "Ec2Spec", "HostSpec")
MAX_NODES = 64
LONGEST_HOURS = 24 * 30
"""that nodes may live, from any moment on"""


def check_name(name: str) -> str:
    """Refuse what cannot be part of the names of a cloud's resources, and of host names.

    Raises:
        ValueError: says what can.
    """
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name, re.ASCII):
        raise ValueError(
            f"{name!r} cannot name a cluster; write small letters, digits and '-', 40 at most, "
            f"such as mnist-2"
        )
    return name


Name = Annotated[str, AfterValidator(check_name)]


class EnvironmentSpec(SpecPart):
    """What the nodes' Python environment is made of."""

    python: str = "auto"
    """the interpreter that the environment stands on, a path on the nodes. auto: the one that has
    PyTorch already (a deep-learning image's), else python3"""
    requirements: str | None = None
    """a requirements file, beside cluster.yaml"""
    playbook: str | None = None
    """an Ansible playbook of your own, run after ours"""


class Ec2Spec(SpecPart):
    """Machines of Amazon EC2."""

    region: str | None = None
    """default: what AWS_REGION or your AWS profile says"""
    profile: str | None = None
    """of your AWS configuration; default: AWS_PROFILE"""
    instance_type: str = "g4dn.xlarge"
    ami: str = "auto"
    """an image's id (ami-…), an SSM parameter (/aws/service/…), or auto: AWS's deep-learning image
    with PyTorch for the type's architecture"""
    user: str = "ubuntu"
    """whom that image lets in"""
    spot: bool = False
    max_price_usd: float | None = Field(default=None, gt=0)
    """per hour and node, for spot; default: the on-demand price"""
    zones: tuple[str, ...] = ()
    """availability zones to try, in this order; default: all of the region that have the type"""
    vpc: str | None = None
    subnet: str | None = None
    """default: the region's default network"""
    disk_gb: int = Field(default=100, ge=8, le=16_384)
    key_file: str | None = None
    """a private key of your own (ed25519 or RSA); default: one is made for the cluster"""
    allow_from: str = "auto"
    """who may reach SSH, as a network (203.0.113.7/32); auto: the address that you call from"""
    instance_profile: str | None = None
    """an IAM instance profile for the nodes, e.g. one that may write to the storage"""
    placement_group: bool = True
    """machines close to each other; a single node has none"""


class HostSpec(SpecPart):
    """A machine that you own."""

    host: str
    """a name or an address"""
    user: str | None = None
    port: int = Field(default=22, ge=1, le=65_535)
    key_file: str | None = None
    """default: the keys of your agent, and ~/.ssh/id_*"""
    address: str | None = None
    """where the other nodes reach it; default: `host`"""
    host_key: str | None = None
    """its public key, as in known_hosts (`ssh-ed25519 AAAA…`); default: the one that your
    known_hosts has"""


class SshSpec(SpecPart):
    """Machines that you own, reached by SSH."""

    hosts: tuple[HostSpec, ...] = ()
    root: str = "~/drumline"
    """the folder on them that everything goes to"""


class TwinSpec(SpecPart):
    """Simulated nodes on this machine, each with an SSH server: to rehearse without an account."""

    link: LinkSpec = LinkSpec()
    boot_s: float = Field(default=0.0, ge=0, le=600)
    """how long a node takes to boot, to see what waiting looks like"""


class ClusterSpec(SpecPart):
    """A cluster."""

    name: Name = "drumline"
    provider: Literal["ec2", "ssh", "twin"] = "twin"
    nodes: int = Field(default=2, ge=1, le=MAX_NODES)
    workers: int | Literal["auto"] = Field(default="auto")
    """ranks on each node; auto: one for each GPU, or one"""
    max_hours: float = Field(default=8.0, gt=0, le=LONGEST_HOURS)
    """nodes end themselves after so long, whatever happens to the laptop"""
    budget_usd: float | None = Field(default=None, gt=0)
    """nodes end themselves before they have cost more"""
    idle_minutes: float | None = Field(default=60.0, gt=0)
    """nodes end themselves when they have had no job for so long; null: never"""
    environment: EnvironmentSpec = EnvironmentSpec()
    storage: str | None = None
    """where run directories are copied to: s3://bucket/prefix, any URL that fsspec knows, or a
    folder beside cluster.yaml"""
    ec2: Ec2Spec = Ec2Spec()
    ssh: SshSpec = SshSpec()
    twin: TwinSpec = TwinSpec()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if isinstance(self.workers, int) and not 1 <= self.workers <= MAX_WORKERS:
            raise ClashError(
                f"workers is {self.workers}, but must be auto, or 1 to {MAX_WORKERS} ranks on each "
                f"node; write workers: auto",
                "workers",
            )
        if self.provider == "ssh" and not self.ssh.hosts:
            raise ClashError(
                "provider: ssh needs your machines; add ssh: {hosts: [{host: 192.0.2.10}]}",
                "provider",
            )
        if self.provider == "ssh" and len(self.ssh.hosts) < self.nodes:
            raise ClashError(
                f"nodes is {self.nodes}, but ssh.hosts names {len(self.ssh.hosts)}; "
                f"write nodes: {len(self.ssh.hosts)}, or add hosts",
                "nodes",
            )
        return self

    @property
    def storage_folder(self) -> Path | None:
        """The storage, where it is a folder of this machine."""
        path = (self.storage or "").removeprefix("file://")
        return Path(path) if path.startswith("/") else None

    def beside(self, folder: Path) -> Self:
        """Return the same cluster with files named from the root, as seen from cluster.yaml's
        folder: later commands are run in any folder, and nodes have others.
        """

        def beside(file: str) -> str:
            return os.path.abspath(folder / os.path.expanduser(file))

        def with_key(part: P) -> P:
            key = part.key_file and beside(part.key_file)  # "" is a choice, too: no key file
            return part.model_copy(update={"key_file": key})

        path = (self.storage or "").removeprefix("file://")
        is_folder = path and not (path.startswith("/") or "::" in path or "://" in path)
        storage = beside(path) if is_folder else self.storage or None
        ssh = self.ssh.model_copy(update={"hosts": tuple(map(with_key, self.ssh.hosts))})
        return self.model_copy(update={"storage": storage, "ssh": ssh, "ec2": with_key(self.ec2)})


FILE = Path("cluster.yaml")


def read_cluster(file: Path | None, overrides: Iterable[str] = ()) -> ClusterSpec:
    """Read the spec of a cluster that is to be made; `file` None is ./cluster.yaml."""
    path = file or FILE
    if not path.exists():
        raise UsageError(
            f"no {path} here; write one with: drumline cluster init (twin rehearses on this "
            f"machine, ec2 and ssh are the others), or name another file: OTHER.yaml"
        )
    spec = read_spec(ClusterSpec, overrides, "name=mine nodes=4", path=path)
    return spec.beside(path.absolute().parent)


def find_cluster(name: str | None) -> tuple[ClusterSpec, ClusterHome]:
    """Find a cluster that exists: by its name, by ./cluster.yaml, or the only one."""
    if name is None and FILE.exists():
        name = read_cluster(FILE).name
    known = known_clusters()
    if name is None and not known:
        raise UsageError(
            "no cluster is up; write a cluster.yaml (drumline cluster init), then: drumline up"
        )
    if name is None and len(known) > 1:
        which = f"which cluster? {listed(known)} are up"
        raise UsageError(f"{which}; name one: --cluster {known[0]}")
    name = known[0] if name is None else name
    if name not in known:
        names = f"; there {'is' if len(known) == 1 else 'are'} {listed(known)}" if known else ""
        raise UsageError(f"no cluster {name} is up{names}; make it with: drumline up")
    home = ClusterHome.of(name)
    return read_spec(ClusterSpec, path=home.spec_file), home


def refuse_fewer_nodes(spec: ClusterSpec, home: ClusterHome) -> None:
    """Refuse a spec with fewer nodes than the cluster has: `up` removes none."""
    numbers = [machine.node for machine in home.read_facts().machines]
    if numbers and max(numbers) >= spec.nodes:
        raise ClusterError(
            f"{spec.name} has {len(numbers)} nodes, but nodes is {spec.nodes}; write nodes: "
            f"{len(numbers)}, or remove it first with: drumline down"
        )


def known_clusters() -> list[str]:
    """List the names of the clusters that this machine has a folder of."""
    return sorted(path.parent.name for path in clusters_root().glob("*/cluster.yaml"))


def cluster_template(provider: str, name: str) -> str:
    """Return what `drumline cluster init` writes for a provider: a commented cluster.yaml."""
    text = resources.files("drumline.cluster").joinpath(f"templates/{provider}.yaml").read_text()
    return text.replace("$name", name)
