"""Signals that wait: a step that must not stop half way is not interrupted by Ctrl-C.

Python raises KeyboardInterrupt between any two instructions: after a folder is made and before
anybody knows of it, or in the middle of its removal. Inside `deferred_signals` the signals that
end a command are only noted; they are raised where it ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Keep signals back until the context ends; those that nobody handles end us as ever.

    Handlers are exchanged, and no mask is set: children would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread gets signals
        yield
        return
    came: list[int] = []
    handlers = {
        number: handler for number in _ENDING if callable(handler := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
