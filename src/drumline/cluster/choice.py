"""Which cluster a command means: the one of ./cluster.yaml, or the one that it names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drumline.cluster.home import ClusterHome, clusters_root
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import UsageError
from drumline.core.formatting import listed
from drumline.spec.load import read_file

FILE = Path("cluster.yaml")


def read_cluster(file: Path | None, words: Iterable[str] = ()) -> ClusterSpec:
    """Read the cluster that is to be made; `file` None is ./cluster.yaml.

    Raises:
        UsageError: there is no such file.
        SpecError: it does not make sense; says which line, and the way out.
    """
    path = FILE if file is None else file
    if not path.exists():
        raise UsageError(
            f"no {path} here; write one with: drumline cluster init (twin rehearses on this "
            f"machine, ec2 and ssh are the others), or name another file: drumline up OTHER.yaml"
        )
    return read_file(ClusterSpec, path, words).beside(path.absolute().parent)


def find_cluster(name: str | None, file: Path | None = None) -> tuple[ClusterSpec, ClusterHome]:
    """Find a cluster that exists: by its name, by a file, by ./cluster.yaml, or the only one.

    Raises:
        UsageError: there is none, or several; names them.
    """
    if name is None and (file is not None or FILE.exists()):
        name = read_cluster(file).name
    known = known_clusters()
    if name is None:
        if len(known) != 1:
            raise UsageError(_which(known))
        name = known[0]
    if name not in known:
        names = f"; there {'is' if len(known) == 1 else 'are'} {listed(known)}" if known else ""
        raise UsageError(f"no cluster {name} is up{names}; make it with: drumline up")
    home = ClusterHome.of(name)
    return read_file(ClusterSpec, home.spec_file), home


def known_clusters() -> list[str]:
    """Name the clusters that this machine knows of."""
    return sorted(path.parent.name for path in clusters_root().glob("*/cluster.yaml"))


def _which(known: list[str]) -> str:
    if not known:
        return "no cluster is up; write a cluster.yaml (drumline cluster init), then: drumline up"
    return f"which cluster? {listed(known)} are up; name one: --cluster {known[0]}"
