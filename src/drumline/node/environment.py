"""The Python environment of a node: R/env stands on an interpreter that has PyTorch already.

    R/env             a venv whose interpreter is the base's
      + R/lib         this package, by a .pth file; it comes before anything of the same name.
                      A process keeps the edition that R/lib led to when it started
      + the base's    packages, by a .pth file where the base is itself a venv (there
                      --system-site-packages would show those of the base's base)
      + what pip installs on top, in the laptop's versions; PyTorch of the base stays, if it is
                      new enough: it fits the node's driver

The playbook `environment.yml` pipes this file to any Python 3 of the node, so it uses the standard
library alone, and no other file of the package. It changes only what is not yet as it should be,
and answers with one line of JSON: what it changed, and what is left to install and to check.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

OLDEST = (3, 11)
IMAGE_PYTHON = "/opt/pytorch/bin/python"  # of AWS's deep-learning images
MASTER_PORT = 29500
_LOOK = """
import importlib.util, json, sys, sysconfig
print(json.dumps({
    "executable": sys.executable, "version": list(sys.version_info[:3]),
    "prefix": sys.prefix, "is_venv": sys.prefix != sys.base_prefix,
    "sites": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
    "torch": importlib.util.find_spec("torch") is not None}))
"""
_CHECK = """
import importlib.metadata, importlib.util, json, sys
try:
    from packaging.requirements import Requirement
    from packaging.version import Version
except ImportError:  # it is one of the packages to install; pip compares versions itself
    Requirement = None
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
def fits(package, have):
    if not have or Requirement is None:
        return False
    base = Version(have).base_version  # NVIDIA's builds are called 2.8.0a0+…
    return Requirement(package["requirement"]).specifier.contains(base)
missing, install = [], []
for package in json.load(sys.stdin):
    have = version(package["name"])
    if fits(package, have):
        if package["keep"] or have == package["version"]:
            continue
    else:
        missing.append(package["requirement"])
    pinned = package["version"] and not (package["keep"] and have and Requirement is None)
    install.append("{name}=={version}".format(**package) if pinned else package["requirement"])
print(json.dumps({"missing": missing, "install": install,
                  "pip": importlib.util.find_spec("pip") is not None}))
"""


class UnfitError(Exception):
    """This node cannot have the environment; the message says why, and what to do."""


class Interpreter(NamedTuple):
    """A Python of the node."""

    executable: str
    version: Sequence[int] = (0, 0, 0)
    """0.0.0: it does not run"""
    prefix: str = ""
    is_venv: bool = False
    sites: Sequence[str] = ()
    """where its packages are"""
    torch: bool = False
    """whether PyTorch is among them"""


class Wanted(NamedTuple):
    """What the environment is to be."""

    root: str
    python: str
    """the interpreter that it stands on, or auto"""
    dependencies: Sequence[Mapping[str, object]]
    """`NodePackage` of `cluster.provision.stamp`, as JSON"""
    requirements: Mapping[str, str]
    """files by their names"""
    leader: str
    address: str
    node: int
    nodes: int
    login: bool
    """whether login shells are to see it"""


class Packages(NamedTuple):
    """What the environment has, and what it lacks."""

    missing: Sequence[str]
    install: Sequence[str]
    pip: bool


def _run(
    *argv: str, timeout_s: float = 60, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, input=given, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def _choose_base(wanted: str) -> Interpreter:
    """Find the interpreter that the environment stands on."""
    if wanted != "auto":
        path = Path(wanted).expanduser()
        if not os.access(path, os.X_OK):
            raise UnfitError(
                f"environment.python is {wanted}, but there is no such program on this node; "
                f"give a path that it has, or write python: auto"
            )
        found = [_inspect_python(str(path))]
    else:
        found = [_inspect_python(path) for path in _candidates()]
    usable = [base for base in found if tuple(base.version[:2]) >= OLDEST]
    if not usable:
        has = ", ".join(f"{b.executable} is {'.'.join(map(str, b.version))}" for b in found)
        raise UnfitError(
            f"Python {'.'.join(map(str, OLDEST))} or newer is needed, but {has or 'there is none'};"
            f" install one, and give its path as environment.python"
        )
    return next((base for base in usable if base.torch), usable[0])


def _candidates() -> list[str]:
    """Name the interpreters to look at, the best first."""
    names = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/bin", "/usr/bin"]
    paths = [IMAGE_PYTHON, *(f"{folder}/{name}" for name in names for folder in folders if folder)]
    return [path for path in dict.fromkeys(paths) if os.access(path, os.X_OK)]


def _inspect_python(python: str) -> Interpreter:
    try:
        return Interpreter(**json.loads(_run(python, "-c", _LOOK).stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return Interpreter(python)


class Maker:
    """Makes one node's environment, and notes what it changed."""

    def __init__(self, wanted: Wanted) -> None:
        self.root = Path(wanted.root)
        self.env = self.root / "env"
        self.python = self.env / "bin" / "python"
        self.wanted = wanted
        self.changed: list[str] = []

    def make(self) -> Mapping[str, object]:
        """Make everything but what pip must install; says what that is."""
        base = _choose_base(self.wanted.python)
        (self.env / "stamp").unlink(missing_ok=True)  # it holds again when all of this is done
        self.make_venv(base)
        self.show_packages(base)
        for name, text in self.wanted.requirements.items():
            self.write(self.env / "requirements" / name, text, 0o600)
        self.write_profile()
        left = self.check_packages()
        return {
            "changed": self.changed,
            "base": base.executable,
            "install": left.install,
            "missing": left.missing,
            "gpu": shutil.which("nvidia-smi") is not None,
            "systemd": Path("/run/systemd/system").is_dir(),
        }

    def make_venv(self, base: Interpreter) -> None:
        """Make the venv, unless there is one that stands on the same interpreter."""
        note = self.env / "base.json"
        same = {"executable": base.executable, "version": base.version, "sites": base.sites}
        known = None
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(note.read_text())
        if known == same and _inspect_python(str(self.python)).version == base.version:
            return
        self.root.mkdir(parents=True, exist_ok=True)
        argv = [base.executable, "-m", "venv", "--clear", "--without-pip", str(self.env)]
        if not base.is_venv or _sees_system(base.prefix):
            argv.insert(-1, "--system-site-packages")
        answer = _run(*argv, timeout_s=300)
        if answer.returncode:
            said = (answer.stderr or answer.stdout).strip()
            raise UnfitError(f"{shlex.join(argv)} failed: {said}")
        pip = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'
        self.write(self.env / "bin" / "pip", pip, 0o755)
        self.write(note, json.dumps(same), 0o644)

    def show_packages(self, base: Interpreter) -> None:
        """Let the environment see this package, and those of a base that is a venv."""
        site = self.env / "lib" / "python{}.{}".format(*base.version) / "site-packages"
        own = f"import os, sys; sys.path.append(os.path.realpath({str(self.root / 'lib')!r}))\n"
        self.write(site / "drumline_1.pth", own, 0o644)
        lines = [f"import site; site.addsitedir({path!r})\n" for path in base.sites]
        if base.is_venv:
            self.write(site / "drumline_2.pth", "".join(lines), 0o644)

    def check_packages(self) -> Packages:
        """Find which of the needed packages are missing (none, or too old), and what to install.

        What is new enough but of another version than the laptop's is to be installed, too. Where
        pip is needed, it is there afterwards.
        """
        needed = json.dumps(self.wanted.dependencies)
        answer = _run(str(self.python), "-c", _CHECK, given=needed)
        if answer.returncode:
            raise UnfitError(f"{self.python} does not run: {answer.stderr.strip()}")
        left = Packages(**json.loads(answer.stdout))
        if (left.install or self.wanted.requirements) and not left.pip:
            if _run(str(self.python), "-m", "ensurepip", timeout_s=300).returncode:
                raise UnfitError(
                    "packages must be installed, but this node's Python has no pip and cannot make "
                    "it; install it there (Debian and Ubuntu: apt install python3-pip python3-venv)"
                )
            self.changed.append("pip")
        return left

    def write_profile(self) -> None:
        """Write the shell variables for training by hand: R/profile.sh, read by a login shell."""
        wanted = self.wanted
        lines = [
            f"export PATH={shlex.quote(str(self.env / 'bin'))}:$PATH",
            f"export MASTER_ADDR={shlex.quote(wanted.leader)} MASTER_PORT={MASTER_PORT}",
            f"export NODE_RANK={wanted.node} NNODES={wanted.nodes}",
        ]
        if device := _interface_of(wanted.address):
            lines.append(f"export GLOO_SOCKET_IFNAME={device} NCCL_SOCKET_IFNAME={device}")
        profile = self.root / "profile.sh"
        head = "# the variables for training, written by drumline\n"
        self.write(profile, head + "\n".join(lines) + "\n", 0o644)
        if wanted.login:
            quoted = shlex.quote(str(profile))
            line = f"[ -r {quoted} ] && . {quoted}  # drumline"
            shell = Path.home() / ".bashrc"
            if not shell.exists() or line not in shell.read_text().splitlines():
                with shell.open("a") as file:
                    file.write(f"\n{line}\n")
                self.changed.append(str(shell))

    def write(self, path: Path, text: str, mode: int) -> None:
        """Write a file if its content is another, readers see the old or the new one."""
        if path.is_file() and path.read_text() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
        part.replace(path)
        self.changed.append(str(path))


def _sees_system(prefix: str) -> bool:
    """Whether a venv shows the packages of the interpreter below it."""
    try:
        text = (Path(prefix) / "pyvenv.cfg").read_text()
    except OSError:
        return False
    return "include-system-site-packages = true" in text


def _interface_of(address: str) -> str:
    """Return the network interface that has an address; "" where that cannot be found out."""
    try:
        answer = _run("ip", "-o", "addr", "show", "to", address, timeout_s=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    fields = answer.stdout.split()
    return fields[1] if answer.returncode == 0 and len(fields) > 1 else ""


def main(*parts: str) -> None:
    """Make this node's Python environment (R/env) as the parts (JSON in base64) together say."""
    values = {}
    for part in parts:
        values.update(json.loads(base64.b64decode(part)))
    wanted = Wanted(**values)
    try:
        answer = Maker(wanted).make()
    except UnfitError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"cannot make the environment in {wanted.root}: {error}")
    print(json.dumps(answer))
