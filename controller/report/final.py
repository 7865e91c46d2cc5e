"""The final stage as people and programs are shown it: with whose parameters, how it ended, what it left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.model import Attempt, AttemptState, ExperimentSpec, FinalRun

_RUNS_AGAIN = (AttemptState.FAILED, AttemptState.CANCELLED)  # while the experiment has not ended


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A regular file below its output folder; `path` is relative to it."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """As it began when the search last ended. `attempts`: oldest first, at least one. `over`: the experiment has ended,
    and this with it. `directory`: where its outputs are; "" where they are not on this machine. `outputs`: None = not
    looked for."""

    run: FinalRun
    attempts: Sequence[Attempt]
    name: str
    over: bool
    directory: str = ""
    outputs: Sequence[OutputFile] | None = None

    @property
    def newest(self) -> Attempt:
        return self.attempts[-1]

    @property
    def failed(self) -> bool:
        return self.newest.state is AttemptState.FAILED

    @property
    def state(self) -> str:
        """In the words of trials."""
        state = self.newest.state
        if state is AttemptState.CREATED or (state in _RUNS_AGAIN and not self.over):
            return "queued"
        return "running" if state is AttemptState.STOPPING else str(state.value)


def where_it_lies(spec: ExperimentSpec, final: FinalRecord) -> str:
    """What became of an output folder that is not on this machine."""
    stays = ""
    match spec.trial.cluster.get("checkpoints"):
        case {"claim": str(claim)}:
            folder = "/final".join(final.name.rsplit("-final", 1)) + final.run.apart
            stays = f"; what it wrote to TUNER_CHECKPOINT_DIR is in the claim {claim}, folder {folder}"
    return f"TUNER_OUTPUT_DIR ended with its pod: what is to stay belongs on a volume of spec.trial.volumes{stays}"
