"""Observe a program that knows nothing of Drumline: its steps, its collectives, where it hangs.

`observe_rank` puts hooks into PyTorch (`hooks`), which note what the program does; from the notes
follow steps and their times (`recorder`), in the same events as those of `drumline train`, so that
everything that reads a run directory reads these runs, too.
"""

from drumline.observer.rank import mark_step, observe, observe_rank

__all__ = ["mark_step", "observe", "observe_rank"]
