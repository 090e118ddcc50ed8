"""A rank's instructions by the schedule's name, refused where they cannot be carried out.

`schedule.py` trusts its arguments, so that the algorithms stay short. User input is checked here.
"""

from __future__ import annotations

from drumline.core.errors import UsageError
from drumline.core.formatting import nearest
from drumline.parallel.pipeline.schedule import SCHEDULES, Instruction


def check_schedule(schedule: str, *, stages: int, chunks: int) -> None:
    """Refuse a pipeline schedule that nobody knows, or that cannot have so many chunks a rank.

    Raises:
        UsageError: with the way out.
    """
    if schedule not in SCHEDULES:
        hint = nearest(schedule, SCHEDULES, "name one of them")
        raise UsageError(f"no schedule {schedule!r} among {', '.join(SCHEDULES)}; {hint}")
    if chunks < 1 or stages < 1:
        raise UsageError(
            f"a pipeline of {stages} stages with {chunks} chunks each has nothing to run; give "
            f"every rank at least one chunk of the model"
        )
    if chunks > 1 and schedule != "interleaved":
        raise UsageError(
            f"schedule {schedule} has one chunk a rank, but this rank got {chunks}; set "
            f"schedule=interleaved, or cut the model into {stages} parts instead of "
            f"{stages * chunks}"
        )


def read_instructions(
    schedule: str, stage: int, stages: int, microbatches: int, chunks: int
) -> tuple[Instruction, ...]:
    """Return the instructions of a rank in a pipeline schedule.

    Raises:
        UsageError: there is no microbatch, or no such schedule.
    """
    check_schedule(schedule, stages=stages, chunks=chunks)
    if microbatches < 1:
        raise UsageError(
            f"a pipeline needs microbatches, but got {microbatches}; cut the batch into at least "
            f"one, better {4 * stages} or more for {stages} stages"
        )
    more = (chunks,) if schedule == "interleaved" else ()
    return tuple(SCHEDULES[schedule](stage, stages, microbatches, *more))
