"""The logger protocol: a class with `log` and `finish`, made and called on rank 0 alone.

    class Lines:                                        loggers: [{name: "mine:Lines", to: out}]
        def __init__(self, run_dir, to): …              options, and of `given` what it takes
        def log(self, step, values): …                  numbers by name, after a step or an epoch
        def finish(self, summary): …                    the summary; None where the run failed

A name is one that is built in, one of an installed package (an entry point of the group
`drumline.loggers`, whose value is `package.module:factory`), or the user's own factory. A logger
that fails does not end the run: it is noted, and not called again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from drumline.core.factory import FactoryKind
from drumline.core.rundir import EventWriter, RunDir
from drumline.spec.learning import LOGGER_GROUP, LOGGERS, LoggerSpec, require_loggers
from drumline.spec.load import flatten_keys
from drumline.spec.run_spec import RunSpec

_GIVEN = ("run_dir", "name", "spec")
_KIND = FactoryKind(
    what="logger", returns="an object with log and finish", key="loggers", given=_GIVEN
)


class Logger(Protocol):
    """What a logger is."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Take the run's summary, or None if it failed, and let go of everything."""


class Loggers:
    """The loggers of a run; empty on all ranks but the first."""

    def __init__(self, events: EventWriter) -> None:
        self._loggers: list[tuple[str, Logger]] = []
        self._events = events

    def __bool__(self) -> bool:
        return bool(self._loggers)

    def add(self, name: str, logger: Logger) -> None:
        """Add a logger under the name that notes call it by."""
        self._loggers.append((name, logger))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Give numbers to all loggers."""
        for entry in list(self._loggers):
            try:
                entry[1].log(step, values)
            except Exception as error:
                self._loggers.remove(entry)
                self._note(entry[0], error)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """End all loggers."""
        ended, self._loggers = self._loggers, []
        for name, logger in ended:
            try:
                logger.finish(summary)
            except Exception as error:
                self._note(name, error)

    @contextlib.contextmanager
    def ended_by_failure(self) -> Iterator[None]:
        """Tell all loggers that the run failed, if what is done in here does."""
        try:
            yield
        except BaseException:
            self.finish(None)
            raise

    def _note(self, name: str, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        text = f"logger {name} failed ({said}); the run goes on without it"
        self._events.write("note", text=text)


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
            made.add(one.name, _build(one, given))
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
