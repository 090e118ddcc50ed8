"""A real Chromium, without a window and without a port: it is driven through a pipe."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
# what is wider than the window, but for what scrolls by itself: nothing does on paper
_OFF_THE_PAGE = """
[...document.querySelectorAll('body *')]
  .filter(one => !one.closest(matchMedia('print').matches ? 'pre, svg' : '.scroll, pre, svg'))
  .filter(one => one.getBoundingClientRect().right > window.innerWidth + 1)
  .map(one => one.tagName + ' ' + one.textContent.slice(0, 40))
"""
_EMPTY_FIGURES = """
[...document.querySelectorAll('figure')]
  .filter(one => !(one.querySelector('svg')?.getBoundingClientRect().height > 50))
  .map(one => one.textContent.slice(0, 40))
"""


def find_browser() -> str:
    """Return the browser's path; skips the test where there is none."""
    if (found := _working_browser()) is not None:
        return found
    pytest.skip("no Chromium here; install chromium")


@functools.cache
def _working_browser() -> str | None:
    """Find one that starts: what some systems have is a word about how to get it."""
    for name in _NAMES:
        if (found := shutil.which(name)) is not None:
            asked = subprocess.run([found, "--version"], capture_output=True, timeout=60)
            if asked.returncode == 0:
                return found
    return None


class Browser:
    """One page of a browser."""

    def __init__(self, to_it: int, from_it: int) -> None:
        self._to, self._from = to_it, from_it
        self._rest = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, page: Path, *, width: int, dark: bool = False, paper: bool = False) -> None:
        """Show a page in a window of so many pixels, or as it is printed."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        media = "print" if paper else "screen"
        self._ask("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._ask("Page.navigate", url=page.absolute().as_uri())
        deadline = time.monotonic() + 30
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < deadline, f"{page} does not load"
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """Return what an expression is on the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def faults(self) -> list[str]:
        """What a reader would stumble over."""
        wide = self.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1")
        return [
            *self.complaints,
            *(["the page scrolls sideways"] if wide else []),
            *(f"off the page: {one}" for one in self.evaluate(_OFF_THE_PAGE)),
            *(f"no picture in: {one}" for one in self.evaluate(_EMPTY_FIGURES)),
        ]

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], 60)
            chunk = os.read(self._from, 1 << 20) if ready else b""
            assert chunk, "the browser does not answer"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(params["exceptionDetails"]["text"])
            case "Log.entryAdded":
                self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")
            case "Runtime.consoleAPICalled":
                self.complaints.append(f"console: {params['args']}")
            case "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "about:")):
                    self.complaints.append(f"asked the network for {url}")


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser with a new profile; it ends with the context."""
    path = find_browser()
    there, to_it = os.pipe()
    from_it, back = os.pipe()

    def pass_on() -> None:  # the browser reads from 3 and writes to 4
        os.dup2(there, 13)
        os.dup2(back, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [path, *_QUIET, f"--user-data-dir={profile}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pass_on,
            pass_fds=(3, 4),
            start_new_session=True,
        )
        os.close(there)
        os.close(back)
        try:
            yield Browser(to_it, from_it)
        finally:
            os.close(to_it)  # it ends with its pipe
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(from_it)
