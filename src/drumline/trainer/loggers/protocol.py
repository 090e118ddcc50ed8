"""The logger protocol: a class with `log` and `finish`, made and called on rank 0 alone.

    class Lines:                                        loggers: [{name: "mine:Lines", to: out}]
        def __init__(self, run_dir, to): …              options, and of `given` what it takes
        def log(self, step, values): …                  numbers by name, after a step or an epoch
        def finish(self, summary): …                    the summary; None where the run failed

A name is one that is built in, one of an installed package (an entry point of the group
`drumline.loggers`, whose value is `package.module:factory`), or the user's own factory. A logger
that fails does not end the run: it is noted, and not called again. Each is made and called on a
thread of its own, one call after the other, so that no step waits for a service that is slow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Protocol

from drumline.core.rundir import EventWriter, RunDir
from drumline.spec.learning import LOGGER_GROUP, LOGGERS, LoggerSpec, require_loggers
from drumline.spec.load import flatten_keys
from drumline.spec.run_spec import RunSpec

FINISH_S = 60.0
"""how long a run that has ended waits for its loggers"""
_FAILED_S = 10.0
_BUILD_S = 10.0
"""how long a run waits for a logger to be made; one that takes longer gets its numbers later"""
_KIND = LoggerSpec.factories


class Logger(Protocol):
    """What a logger is."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Take the run's summary, or None if it failed, and let go of everything."""


class _LoggerThread(Thread):
    """Makes a logger, and its calls in their order, until one fails or has been its last."""

    def __init__(self, name: str, build: Callable[[], Logger]) -> None:
        super().__init__(name=f"logger {name}", daemon=True)
        self.calls: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self.error: BaseException | None = None
        self._build = build
        self._built = Event()

    def run(self) -> None:
        """Make the logger and the calls."""
        try:
            logger, method = self._build(), ""
            self._built.set()
            while method != "finish":
                method, arguments = self.calls.get()
                getattr(logger, method)(*arguments)
        except BaseException as error:  # a SystemExit would end the thread without a word
            self.error = error
        self._built.set()

    def start_and_build(self) -> bool:
        """Start, and wait a while until the logger is made; return whether it is.

        Raises:
            BaseException: what making it has raised meanwhile.
        """
        self.start()
        built = self._built.wait(_BUILD_S)
        if built and self.error is not None:
            raise self.error
        return built


class Loggers:
    """The loggers of a run; empty on all ranks but the first."""

    def __init__(self, events: EventWriter) -> None:
        self._threads: list[_LoggerThread] = []
        self._events = events

    def __bool__(self) -> bool:
        return bool(self._threads)

    def add(self, name: str, build: Callable[[], Logger]) -> None:
        """Build a logger, and add it under the name that notes call it by."""
        thread = _LoggerThread(name, build)
        if not thread.start_and_build():
            text = f"{thread.name} is not ready after {_BUILD_S:g} s; the run goes on meanwhile"
            self._events.write("note", text=text)
        self._threads.append(thread)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Give numbers to all loggers; does not wait for them."""
        self._note_failures()
        for thread in self._threads:
            thread.calls.put(("log", (step, values)))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """End all loggers; waits for them, but not for ever."""
        for thread in self._threads:
            thread.calls.put(("finish", (summary,)))
        within_s = _FAILED_S if summary is None else FINISH_S
        until = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._note_failures()
        for thread in filter(Thread.is_alive, self._threads):
            text = f"{thread.name} was not done {within_s:g} s after the run; it may lack numbers"
            self._events.write("note", text=text)
        self._threads = []

    @contextlib.contextmanager
    def ended_by_failure(self) -> Iterator[None]:
        """Tell all loggers that the run failed, if what is done in here does."""
        try:
            yield
        except BaseException:
            self.finish(None)
            raise

    def _note_failures(self) -> None:
        for thread in [thread for thread in self._threads if thread.error is not None]:
            said = f"{type(thread.error).__name__}: {thread.error}".splitlines()[0]
            text = f"{thread.name} failed ({said}); the run goes on without it"
            self._events.write("note", text=text)
            self._threads.remove(thread)


def build_loggers(
    spec: RunSpec, run: RunDir, events: EventWriter, *, leads: bool = True
) -> Loggers:
    """Build a run's loggers; on ranks that do not lead there are none.

    Raises:
        SpecError: a name or an option is wrong, or a package is not installed.
    """
    made = Loggers(events)
    if not leads:
        return made
    require_loggers(spec.loggers)
    given = {"run_dir": run.path, "name": run.path.name, "spec": spec.model_dump(mode="json")}
    with made.ended_by_failure():
        for one in spec.loggers:
            made.add(one.name, partial(_build, one, given))
    return made


def _build(spec: LoggerSpec, given: Mapping[str, Any]) -> Logger:
    factory = _KIND.find(_path_of(spec.name))
    _KIND.check_options(spec.name, factory, spec.options)
    logger: Logger = _KIND.call(spec.name, factory, spec.options, **given)
    if not (hasattr(logger, "log") and hasattr(logger, "finish")):
        raise _KIND.wrong_result(spec.name, logger)
    return logger


def _path_of(name: str) -> str:
    """Return where a logger's factory is: package.module:factory."""
    if ":" in name:
        return name
    offered = {entry.name: entry.value for entry in entry_points(group=LOGGER_GROUP)}
    return LOGGERS[name] if name in LOGGERS else offered[name]


def flat(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a summary by name, those in parts of it as part.name."""
    return {
        key: value
        for key, value in flatten_keys(summary)
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
