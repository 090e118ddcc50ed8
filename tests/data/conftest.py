from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def originals() -> Path:
    """The folder with the four original MNIST files, beside the repository."""
    folder = SHARED / "mnist"
    if not folder.is_dir():
        pytest.skip("the original MNIST files are not in ../shared/data/mnist")
    return folder


@contextmanager
def _serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], str]]:
    """Start a real web server on loopback that answers so, and return its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(_serving(answer))
