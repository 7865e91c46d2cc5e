"""Start threads. A system gives a user or a container a limited number of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from suggest.errors import Unavailable

NO_THREAD_LEFT = (
    "this process cannot start another thread; end other programs of this user, or raise the limit "
    "of its processes and threads (ulimit -u, TasksMax=, the pids limit of a container) or of its "
    "memory (ulimit -v), then try again"
)


def is_refused(error: Exception) -> bool:
    """Return whether Python could not start a thread. It has no type of its own for that."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def started(target: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Return a thread that runs. Raises Unavailable if the system gives no more."""
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        if is_refused(error):
            raise Unavailable(NO_THREAD_LEFT) from error
        raise
    return thread
