"""`Language`: which of two languages the labs and the pages speak."""

from __future__ import annotations

from enum import StrEnum


class Language(StrEnum):
    """What is said to students and readers of reports is said in either."""

    EN = "en"
    ZH = "zh"
