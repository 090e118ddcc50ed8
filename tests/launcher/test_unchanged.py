"""A script finds under `drumline run` what it finds under torchrun, and ends as it ends there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from namespaces import need_namespaces

# what a process may look at, a line each; the same under both launchers, but for what is taken out
FINDS = """
import faulthandler, gc, io, json, logging, multiprocessing, os, resource, signal, sys, threading
import warnings

def list_files():
    files = {}
    for number in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{number}"):
            files[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return sorted(number for number, file in files.items() if "/events/" not in file)

main = {name: value for name, value in vars(sys.modules["__main__"]).items() if name[:2] == "__"}
process = multiprocessing.current_process()
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
found = {
    "arguments": [sys.argv, sys.orig_argv, sys.path[0], sys.flags, sys.executable],
    "main": {name: str(value).partition(" at 0x")[0] for name, value in main.items()},
    "is main": globals() is vars(sys.modules["__main__"]),
    "folder": os.getcwd(),
    "signals": {one.name: str(signal.getsignal(one)).partition("0x")[0] for one in signal.Signals},
    "masks": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Threads")],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.callbacks],
    "files": list_files(),
    "process": [process.name, type(process).__name__, process.daemon, str(process._config.keys())],
    "parent": str(multiprocessing.parent_process()),
    "start method": multiprocessing.get_start_method(allow_none=True),
    "threads": [thread.name for thread in threading.enumerate()],
    "is main thread": threading.current_thread() is threading.main_thread(),
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), os.nice(0)],
    "faults": faulthandler.is_enabled(),
    "resources": [resource.getrlimit(n) for n in range(16)],
    "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "hooks": [str(hook) for hook in (sys.excepthook, threading.excepthook, sys.unraisablehook)],
    "tracing": [type(sys.gettrace()).__name__, sys.getprofile()],
    "logging": [logging.root.handlers, logging.root.level],
    "input": [sys.stdin.fileno(), sys.stdin.readline() if os.environ["RANK"] == "0" else ""],
    "umask": os.umask(0o22),
}
for stream in (sys.stdout, sys.stderr):
    found[stream.name] = [stream.encoding, stream.errors, stream.line_buffering,
                          stream.write_through, type(stream.buffer).__name__]
import numpy, random, torch
found["torch"] = [str(torch.get_default_dtype()), str(torch.get_default_device()),
    torch.get_num_threads(), torch.is_grad_enabled(), torch.multiprocessing.get_sharing_strategy()]
found["environment"] = dict(os.environ)
found["chance"] = [random.random(), numpy.random.rand(), torch.rand(1).item()]
json.dump(found, open(f"{os.environ['FOUND']}-{os.environ['RANK']}.json", "w"))
"""
# values that differ from launch to launch, and what our ranks have besides
DIFFER = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "FOUND"}
OF_THE_OBSERVER = {"threads", "files", "masks"}
"""it has a thread, a file and a signal of its own"""
OURS = {"DRUMLINE_SCRATCH", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}


def run_torchrun(drumline, *words: str, given: str = "", **extra: str):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words],
        cwd=drumline.folder,
        env=drumline.environment(**extra),
        input=given,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )


def launch(drumline, text: str, *options: str, args: tuple[str, ...] = (), given="", **extra: str):
    """Run a script's text by `drumline run`, with so much on its standard input."""
    (drumline.folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "drumline", "run", *options, "script.py", *args],
        cwd=drumline.folder,
        env=drumline.environment(**extra),
        input=given,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def read_found(path: Path) -> tuple[dict, dict, list]:
    found = json.loads(path.read_text())
    return found, found.pop("environment"), found.pop("chance")


def test_a_script_finds_what_torchrun_gives_it(drumline):
    extra = {"OMP_NUM_THREADS": "1"}  # torchrun sets 1, we share out the cores
    words = {"args": ("--lr", "1"), "given": "a line\n", **extra}
    done = launch(drumline, FINDS, "--no-ledger", FOUND="here", **words)
    assert done.returncode == 0, done.stderr
    assert launch(drumline, FINDS, FOUND="observed", **words).returncode == 0
    run_torchrun(drumline, "script.py", "--lr", "1", given="a line\n", FOUND="there", **extra)
    chances = []
    for rank in (0, 1):
        here, variables, chance = read_found(drumline.folder / f"here-{rank}.json")
        there, their_variables, _ = read_found(drumline.folder / f"there-{rank}.json")
        assert here == there
        observed, *_ = read_found(drumline.folder / f"observed-{rank}.json")
        assert {name for name in here if here[name] != observed[name]} == OF_THE_OBSERVER
        assert variables.keys() - their_variables.keys() == OURS
        assert their_variables.keys() <= variables.keys()
        same = their_variables.keys() - DIFFER - {"MASTER_ADDR"}
        assert {n: variables[n] for n in same} == {n: their_variables[n] for n in same}
        chances += chance
    assert len(set(chances)) == 6, "ranks that were forked from one process draw different numbers"


ENDS = """
import atexit, os, sys, threading, time
print("rank", os.environ["RANK"], flush=True)

class Aborts:
    def __del__(self):
        os.abort()

match int(os.environ["RANK"]):
    case 0:
        os._exit(0)
    case 1:
        os.execv("/bin/echo", ["echo", "another program"])
    case 2:
        lines = open("lines", "w")
        print("not closed", file=lines)
        atexit.register(print, "atexit")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        sys.exit()
    case 3:
        kept = Aborts()
"""


def test_a_rank_may_end_in_any_way_that_is_exit_code_0(drumline):
    done = launch(drumline, ENDS, "-j", "1x4")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "[1] another program" in lines
    assert lines.index("[2] thread") < lines.index("[2] atexit")
    assert (drumline.folder / "lines").read_text() == "not closed\n"
    assert lines[-1].startswith("all 4 ranks are done")


FAILS = """
import atexit, os, sys

def hook(kind, error, trace):
    print("own hook:", kind.__name__, trace.tb_frame.f_code.co_filename)

def fail():
    raise LookupError("not there")

atexit.register(print, "atexit", flush=True)
if sys.argv[1] == "exit":
    sys.exit(7)
if sys.argv[1] == "hook":
    sys.excepthook = hook
fail()
"""


TRACEBACK = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("how", "told", "logged"),
    [
        ("exit", "rank 0 exited with code 7", ["[0] atexit"]),
        ("hook", "LookupError: not there", ["[0] own hook: LookupError {script}", "[0] atexit"]),
        pytest.param(
            "raise",
            f'rank 0 failed:\n  {TRACEBACK}\n    File "{{script}}", line 15',
            [f"[0] {TRACEBACK}", '[0]   File "{script}", line 15, in <module>'],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["exit", "hook", "raise"],
)
def test_a_rank_that_fails_is_told_as_python_tells_it(drumline, how, told, logged):
    done = launch(drumline, FAILS, "-j", "1x1", args=(how,))
    script = str(drumline.folder / "script.py")
    assert done.returncode == 1
    assert told.format(script=script) in done.stderr
    lines = [line.format(script=script) for line in logged]
    assert done.stdout.splitlines()[: len(lines)] == lines


PROCESSES = """
import multiprocessing, os, subprocess, sys, threading
import torch
from torch.utils.data import DataLoader, Dataset

def work(queue):
    queue.put(os.getpid())

def main():
    if os.environ["RANK"] == "0":
        load()
    else:
        spawn()
    if os.fork() == 0:
        sys.exit(0)  # writes nothing into the rank's events, nor its end
    os.wait()
    subprocess.Popen(["sleep", "1000"])
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def load():
    class Squares(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, at):
            return torch.tensor(at * at)

    loader = DataLoader(Squares(), batch_size=4, num_workers=2, collate_fn=lambda batch: sum(batch))
    print("loaded", [batch.item() for batch in loader])
    said = subprocess.run([sys.executable, "-c", "print(input())"], capture_output=True, text=True)
    print("subprocess", said.stdout.strip())

def spawn():
    multiprocessing.set_start_method("spawn")
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=work, args=(queue,))
    child.start()
    print("spawned", queue.get() == child.pid, child.join())

if __name__ == "__main__":
    main()
"""


def test_a_rank_starts_processes_and_what_it_leaves_running_ends_with_the_run(drumline):
    done = launch(drumline, PROCESSES, given="from the terminal\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] loaded [14, 126]" in done.stdout
    assert "[1] spawned True None" in done.stdout
    assert "[0] subprocess from the terminal" in done.stdout
    assert drumline.left_behind() == []


DDP = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
for _ in range(5):
    model(torch.randn(3, 5)).sum().backward()
dist.destroy_process_group()
print("done")
"""


def test_plain_ddp_ends_when_it_has_ended(drumline):
    done = launch(
        drumline, DDP, "-j", "1x5"
    )  # with so many ranks on few cores it hung nearly always
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("] done\n") == 5


INNER_DDP = """
import torch, torch.distributed as dist

def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
    for _ in range(5):
        model(torch.randn(3, 5)).sum().backward()
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()

dist.init_process_group("gloo")
train()  # DDP's reducer, which has the group last, goes with the function's end
print("done")
"""


@pytest.mark.parametrize("ledger", ["--ledger", "--no-ledger"])
def test_a_function_that_destroys_its_group_ends(drumline, ledger):
    done = launch(drumline, INNER_DDP, "-j", "1x5", ledger)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("] done\n") == 5


DESTRUCTOR_HANGS = """
import time

class Hangs:
    def __del__(self):
        time.sleep(1000)

kept = Hangs()
print("done")
"""


@pytest.mark.slow
def test_a_run_whose_script_has_ended_ends_though_a_destructor_hangs(drumline):
    done = launch(drumline, DESTRUCTOR_HANGS, "-j", "1x1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0] done\nthe one rank is done")


DIES_ONCE = """
import os, signal, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
os._exit(0)
"""


def test_a_restart_is_told(drumline):
    done = launch(drumline, DIES_ONCE, "--restarts", "2")
    assert done.returncode == 0, done.stderr
    told = "rank 1 was killed by SIGKILL; all ranks start again (restart 1 of 2)"
    assert done.stdout.splitlines()[0] == told
    assert done.stdout.count("] attempt 1\n") == 2


def test_where_torch_cannot_be_imported_that_is_said_with_the_way_out(drumline):
    (drumline.folder / "broken" / "torch").mkdir(parents=True)
    missing = "libcudart.so.12: cannot open shared object file"
    (drumline.folder / "broken/torch/__init__.py").write_text(f"raise ImportError({missing!r})")
    answer = drumline("train", PYTHONPATH=str(drumline.folder / "broken"))
    assert answer.code == 1
    assert f"PyTorch cannot be imported by {sys.executable}: {missing}" in answer.err
    assert "pip install torch" in answer.err


SAVES = """
import sys, time
print("trains", flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("saves", flush=True)
    time.sleep(0.5)
    sys.exit(0)
"""


def test_a_script_may_save_what_it_has_at_ctrl_c(drumline):
    (drumline.folder / "script.py").write_text(SAVES)
    process = drumline.start("run", "-j", "1x1", "script.py")
    assert process.stdout.readline() == "[0] trains\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "drumline: interrupted\n")
    assert (drumline.folder / "runs/script-1/logs/rank-0.log").read_text() == "trains\nsaves\n"
    assert "Traceback" not in (drumline.folder / "runs/script-1/logs/node-0.log").read_text()


RPC = """
import os, torch, torch.distributed.rpc as rpc
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
if rank == 0:
    print("sum", rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 2)).item())
rpc.shutdown()
"""


@pytest.mark.slow
def test_rpc_between_simulated_nodes_takes_their_link(drumline):
    need_namespaces()
    done = launch(drumline, RPC, "-j", "2x1")
    assert done.returncode == 0, done.stderr
    assert "[0] sum 3.0" in done.stdout
