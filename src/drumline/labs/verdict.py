"""`Verdict`: what one check says of a student's code; `Result`: what all of them say together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self


class Status(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WRONG = "wrong"
    TO_DO = "to do"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one check says."""

    check: str
    status: Status
    mistake: str | None = None
    """the name of what is wrong, or of why it was not run"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    picture: tuple[str, ...] = ()
    output: str = ""
    """the end of what the code printed"""
    seconds: float = 0.0

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> Self:
        """Read a verdict from what the checking process tells."""
        return cls(
            check=event["check"],
            status=Status(event["status"]),
            mistake=event["mistake"],
            facts=event["facts"],
            picture=tuple(event["picture"]),
            output=event["output"],
            seconds=event["seconds"],
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What all checks of a lab say of a folder."""

    lab: int
    folder: Path
    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether everything is done, and right."""
        return all(verdict.status is Status.PASS for verdict in self.verdicts)

    def count(self, status: Status) -> int:
        """Return how many checks ended so."""
        return sum(verdict.status is status for verdict in self.verdicts)
