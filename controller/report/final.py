"""The final stage as shown to people and programs: its parameters, how it ended,
and its output files. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.model import Attempt, AttemptState, ExperimentSpec, FinalRun

_RUNS_AGAIN = (AttemptState.FAILED, AttemptState.CANCELLED)  # until the experiment ends


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A regular file in the output folder of the final stage; `path` is relative to that folder."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """The final stage as it began when the search last ended.

    attempts: oldest first, at least one.
    over: the experiment has ended, and the final stage with it.
    directory: the folder of its outputs; "" if they are not on this machine.
    outputs: None if they were not looked for.
    """

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
        """Return the state in the words used for trials."""
        state = self.newest.state
        if state is AttemptState.CREATED or (state in _RUNS_AGAIN and not self.over):
            return "queued"
        return "running" if state is AttemptState.STOPPING else str(state.value)


def output_location(spec: ExperimentSpec, final: FinalRecord) -> str:
    """Describe what happened to an output folder that is not on this machine."""
    stays = ""
    match spec.trial.cluster.get("checkpoints"):
        case {"claim": str(claim)}:
            folder = "/final".join(final.name.rsplit("-final", 1)) + final.run.apart
            stays = (
                f"; the contents of TUNER_CHECKPOINT_DIR are in the claim {claim}, folder {folder}"
            )
    message = (
        "TUNER_OUTPUT_DIR was removed with its pod: write outputs to a volume of "
        f"spec.trial.volumes{stays}"
    )
    return spec.words(message)
