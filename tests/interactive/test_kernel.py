"""A real Jupyter kernel: cells run, what they start is shown there, and nothing of it is left."""

from __future__ import annotations

import queue
import time

import pytest

from commands import Drumline

manager = pytest.importorskip("jupyter_client.manager", reason="the notebook extra is missing")
_TIMEOUT_S = 90
IMPORT = "import drumline, os, threading"
WAIT = f"""
def wait():
    print("waiting", flush=True)
    threading.Event().wait({_TIMEOUT_S})
drumline.launch(wait)
"""


class Kernel:
    """A kernel, and what it said of the cells that it ran."""

    def __init__(self, folder):
        self.command = Drumline(folder, folder)
        settings = {"JUPYTER_RUNTIME_DIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
        self._manager = manager.KernelManager(kernel_name="python3")
        self._manager.start_kernel(
            env=self.command.environment(NO_COLOR="1", **settings), cwd=folder, stderr=-3
        )
        self.connect()

    def connect(self):
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_TIMEOUT_S)

    @property
    def pid(self):
        return self._manager.provisioner.pid

    def send(self, code):
        """Run a cell, and give what it shows, message by message, until it is done."""
        self._cell = self._client.execute(code)
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the cell was not done after {_TIMEOUT_S} s") from None
            if message["parent_header"].get("msg_id") != self._cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            if kind not in ("status", "execute_input"):
                yield kind, content

    def run(self, code):
        """Run a cell to its end; return what it showed."""
        shown = list(self.send(code))
        errors = ["\n".join(content["traceback"]) for kind, content in shown if kind == "error"]
        assert not errors, errors[0]
        return shown

    def value(self, code):
        """Run a cell; return the text of its last expression."""
        return next(c["data"]["text/plain"] for k, c in self.run(code) if k == "execute_result")

    def run_until(self, code, text):
        """Run a cell until it has printed something; returns what it shows from then on."""
        shown = self.send(code)
        for kind, content in shown:
            if kind == "stream" and text in content["text"]:
                return shown
        raise AssertionError(f"the cell ended without printing {text!r}")

    def interrupt(self):
        self._manager.interrupt_kernel()

    def restart(self, *, now):
        self._client.stop_channels()
        self._manager.restart_kernel(now=now)
        self.connect()

    def started(self):
        """Processes that it has started and that live."""
        return [each for each in self.command._marked() if not each.startswith(f"{self.pid}:")]

    def left_behind(self):
        """Those that live once they have had time to end."""
        deadline = time.monotonic() + 10
        while (found := self.started()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=False)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("kernel"))
    started.run(IMPORT)
    yield started
    started.close()
    assert started.command.left_behind() == []


def test_what_ranks_print_appears_while_they_run(kernel):
    code = """
    factor = 3
    def work(x):
        print("working on", x)
        while not os.path.exists("seen"):
            threading.Event().wait(0.05)
        return factor * x * int(os.environ["RANK"])
    drumline.launch(work, 2, workers=3)
    """
    text, value = "", ""
    for kind, content in kernel.send(code):
        if kind == "stream":
            text += content["text"]
            if text.count("\n") == 3:  # ranks that nobody hears would wait for ever
                (kernel.command.folder / "seen").touch()
        elif kind == "execute_result":
            value = content["data"]["text/plain"]
    assert sorted(text.splitlines()) == [f"[{rank}] working on 2" for rank in range(3)]
    assert value == "[0, 6, 12]"


def test_an_error_shows_the_ranks_own_lines(kernel):
    code = """
    def fail():
        raise ValueError("the sky fell")  # in a cell
    drumline.launch(fail)
    """
    (error,) = [content for kind, content in kernel.send(code) if kind == "error"]
    assert (error["ename"], error["evalue"]) == ("ValueError", "the sky fell")
    assert 'raise ValueError("the sky fell")  # in a cell' in "\n".join(error["traceback"])


def test_a_run_shows_its_progress_its_tables_and_its_figure(kernel):
    shown = kernel.run("run = drumline.train({'model': 'mlp'}, 'max_steps=60')\nrun")
    kinds = [kind for kind, _ in shown]
    assert kinds[0] == "display_data"
    assert kinds[-1] == "execute_result"
    assert set(kinds[1:-1]) == {"update_display_data"}
    assert [content["transient"] for _, content in shown[1:-1]] == [shown[0][1]["transient"]] * (
        len(shown) - 2
    )
    last = shown[-2][1]["data"]
    assert "epoch 1  step 47/60" in last["text/plain"]
    assert last["text/html"].startswith("<pre ")
    assert "where the time went" in shown[-1][1]["data"]["text/plain"]
    assert "</span>" in shown[-1][1]["data"]["text/html"]
    assert kernel.value("run.summary['steps'], len(run.losses)") == "(60, 60)"
    (figure,) = [content for kind, content in kernel.run("run.plot()") if kind == "execute_result"]
    assert figure["data"]["image/png"]


def test_an_interrupted_cell_leaves_no_process(kernel):
    shown = kernel.run_until(WAIT, "[1] waiting")
    kernel.interrupt()
    assert [content["ename"] for kind, content in shown if kind == "error"] == ["KeyboardInterrupt"]
    assert kernel.left_behind() == []
    assert kernel.value("drumline.launch(os.getpid) != []") == "True"


@pytest.mark.slow
def test_an_interrupted_training_leaves_no_process_and_says_what_there_is(kernel):
    code = "drumline.train('model=mlp', 'epochs=100000', 'name=long')"
    error = {}
    for kind, content in kernel.send(code):
        if kind == "update_display_data" and "epoch 1" in content["data"]["text/plain"]:
            kernel.interrupt()
        if kind == "error":
            error = content
    assert error["ename"] == "KeyboardInterrupt"
    assert "runs/long-1" in error["evalue"]
    assert kernel.left_behind() == []


@pytest.mark.parametrize("now", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_restarted_kernel_leaves_no_process(kernel, now):
    if now:  # SIGKILL, while ranks run
        kernel.run_until(f"{IMPORT}\n{WAIT}", "[0] waiting")
    else:
        kernel.run(f"{IMPORT}\ndrumline.launch(os.getpid)")
    before = kernel.pid
    assert kernel.started()
    kernel.restart(now=now)
    assert kernel.left_behind() == []  # of the old kernel or its ranks
    assert kernel.pid != before
    assert kernel.run("print('a fresh one')")[0][1]["text"] == "a fresh one\n"
    assert kernel.started() == []
