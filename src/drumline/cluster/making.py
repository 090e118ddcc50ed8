"""The provider of a cluster, with the keys that its machines are made with."""

from __future__ import annotations

from drumline.cluster.home import ClusterHome
from drumline.cluster.ssh.keys import check_key, cluster_key, host_key, public_key
from drumline.cluster.provider import Provider
from drumline.cluster.spec import ClusterSpec


def build_provider(spec: ClusterSpec, home: ClusterHome, *, creates: bool = False) -> Provider:
    """Make the provider that the spec names.

    Args:
        spec: says which.
        home: the cluster's folder; its keys are made where they are missing, if it creates.
        creates: whether machines are to be made; looking and removing need no keys.

    Raises:
        ClusterError: a key of the user's cannot be used.
        CloudError: the cloud's credentials or region are missing.
    """
    if spec.provider == "ssh":
        from drumline.cluster.providers.ssh import SshHosts

        return SshHosts(spec, home)
    if spec.provider == "twin":
        from drumline.cluster.providers.twin.provider import TwinProvider

        own = public_key(cluster_key(home)) if creates else ""
        keys = [host_key(home, node).private for node in range(spec.nodes)] if creates else []
        return TwinProvider(spec, home, public_key=own, host_keys=keys)
    from drumline.cluster.providers.ec2.provider import Ec2Provider
    from drumline.cluster.providers.ec2.user_data import NodeBoot, cloud_config

    own = ""
    if creates:
        given = spec.ec2.key_file
        own = public_key(cluster_key(home) if given is None else check_key(given))

    def user_data(node: int) -> str:
        pair = host_key(home, node)
        boot = NodeBoot(
            user=spec.ec2.user,
            authorized_key=own,
            host_key_private=pair.private,
            host_key_public=pair.public,
            hours=provider.hours(),
            idle_minutes=spec.idle_minutes,
        )
        return cloud_config(boot)

    provider = Ec2Provider(spec, home, public_key=own, user_data=user_data)
    return provider
