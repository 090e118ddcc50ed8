"""One rank per terminal, or per container: `drumline train --rank K --world-size N --master …`.

    terminal 1   drumline train --rank 0 --world-size 2 --master localhost:29500
    terminal 2   drumline train --rank 1 --world-size 2 --master localhost:29500

What a launcher would have set in the environment is said by options instead; from there on it is
the same as under torchrun (`join.py`).
"""

from __future__ import annotations

import re

from drumline.core.errors import UsageError
from drumline.core.formatting import listed
from drumline.launch.join import OuterLauncher

NAME = "by hand"
_HERE = ("localhost", "127.0.0.1", "::1")
_EXAMPLE = "--rank 0 --world-size 2 --master localhost:29500"


def rank_by_hand(
    rank: int | None, world_size: int | None, master: str | None
) -> OuterLauncher | None:
    """Be the rank that the options say; None where they say nothing.

    Raises:
        UsageError: one of the three is missing, or they do not fit together.
    """
    given = {"--rank": rank, "--world-size": world_size, "--master": master}
    missing = [option for option, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if rank is None or world_size is None or master is None:
        raise UsageError(
            f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing: one rank by "
            f"hand needs all three, as in {_EXAMPLE}"
        )
    if world_size < 1:
        raise UsageError(f"--world-size {world_size}: must be 1 or more, as in {_EXAMPLE}")
    if not 0 <= rank < world_size:
        raise UsageError(
            f"--rank {rank}: ranks of --world-size {world_size} run from 0 to {world_size - 1}"
        )
    host, port = parse_master(master)
    one_host = host in _HERE
    return OuterLauncher(
        name=NAME,
        rank=rank,
        world_size=world_size,
        local_rank=rank if one_host else 0,
        local_world_size=world_size if one_host else 1,
        job=f"{NAME} {host}:{port}",
        says_where=True,
        master=(host, port),
    )


def parse_master(master: str) -> tuple[str, int]:
    """Read `HOST:PORT`; HOST may be a name, or an IPv6 address in brackets.

    Raises:
        UsageError: it is something else.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:/\[\]\s]+)):(\d{1,5})", master, re.ASCII)
    if match is None or int(match.group(3)) not in range(1, 1 << 16):
        raise UsageError(
            f"--master {master}: expected HOST:PORT, where rank 0 listens, such as node01:29500"
        )
    return match.group(1) or match.group(2), int(match.group(3))
