"""What `ssh`, `jupyter` and `tensorboard` do."""

from __future__ import annotations

import asyncio
import os
import shutil
import webbrowser
from functools import partial
from pathlib import Path

from rich.console import Console

from drumline.cli.cluster_display import NodeRows
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.services import (
    MissingServiceError,
    ServiceName,
    open_service,
    serve_requests,
    stay_busy,
)
from drumline.cluster.jobs.submit import submit
from drumline.cluster.provision.provision import Provisioner
from drumline.cluster.spec import find_cluster
from drumline.cluster.ssh.fleet import Fleet, connected, no_nodes, refuse_silent, run_on
from drumline.core.errors import UsageError
from drumline.core.formatting import listed


def ssh_command(node: str, command: list[str], which: str | None) -> None:
    """Run `drumline ssh`: become OpenSSH, with the cluster's own configuration."""
    spec, home = find_cluster(which)
    machines = {machine.name: machine for machine in home.read_facts().machines}
    if not machines:
        raise no_nodes(home)
    if node not in machines:
        are = "is" if len(machines) == 1 else "are"
        raise UsageError(f"no node {node}; there {are} {listed(list(machines))}")
    program = shutil.which("ssh")
    if program is None:
        raise UsageError("ssh is not here; install it (apt-get install openssh-client)")
    refuse_silent(spec, home, machines[node])
    os.execv(program, [program, "-F", str(home.ssh_config), node, *command])


def jupyter_command(which: str | None, *, browser: bool) -> None:
    """Run `drumline jupyter`: open the leader's JupyterLab, start what notebooks ask for."""
    _serve(which, "jupyter", browser=browser)


def tensorboard_command(which: str | None, *, browser: bool) -> None:
    """Run `drumline tensorboard`: open TensorBoard of the leader."""
    _serve(which, "tensorboard", browser=browser)


def _serve(which: str | None, name: ServiceName, *, browser: bool) -> None:
    spec, home = find_cluster(which)
    console = Console(stderr=True, highlight=False)

    async def serve(fleet: Fleet) -> None:
        with NodeRows(console, name) as rows:
            try:
                service = await open_service(fleet.leader, name, rows.report)
            except MissingServiceError as error:
                folder, packages = Path(home.read_facts().folder), [str(error.fields["package"])]
                provisioner = Provisioner(spec=spec, folder=folder, home=home)
                await provisioner.install_services(fleet.remotes, packages, rows.report)
                service = await open_service(fleet.leader, name, rows.report)
        print(service.url, flush=True)
        console.print("the tunnel is open until you press Ctrl-C")
        if browser:
            _show(home, service.url)
        tasks = [stay_busy(fleet.remotes)]
        if name == "jupyter":  # its notebooks may ask for runs
            tasks.append(serve_requests(fleet.remotes, partial(submit, fleet.remotes)))
        await asyncio.gather(*tasks)

    run_on(connected(spec, home), serve)


def _show(home: ClusterHome, url: str) -> None:
    """Open a page in the browser by a file that leads there: a token is not for process lists."""
    page = home.path / "open.html"
    page.unlink(missing_ok=True)
    with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={url}">\n')
    webbrowser.open(page.as_uri())
