"""With whose parameters the final stage runs: chosen when it begins, recorded with its first attempt, kept after that.

A controller that was killed, a retry and a resume go on with the same ones. When the stage was stopped for good, or the
search has gone on since, it begins anew with those that are best then. No decision whether it runs is made here.
"""

from __future__ import annotations

from controller.core.model import FinalRun
from controller.memory import Memory
from controller.search import Search


async def open_again(memory: Memory, search: Search, begun: FinalRun | None) -> int | None:
    """The stage is open in memory. The trial whose parameters it has from now on; None: it goes on with those of
    `begun`, as recorded."""
    again = begun is not None and not memory.may_choose_final
    trial = await (search.trial(begun.trial) if begun is not None and again else search.best())
    if not again and (begun is None or trial.number != begun.trial):
        memory.recall_finals(memory.finals, begun=None)
    memory.open_final(trial)
    return None if memory.finals else trial.number
