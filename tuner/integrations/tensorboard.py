"""TensorBoard: each trial is a folder with its curves and, for the HPARAMS tab, its parameters.

Needs no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.integrations import needed
from tuner.integrations.trial_log import TrialLog, seconds

with needed("tensorboard"):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

if TYPE_CHECKING:
    from tuner.study import TrialResult


class TensorBoardLog(TrialLog):
    """For `callbacks=` of `tuner.minimize`. Writes trial N to `log_dir/SEARCH/N`."""

    tool = "TensorBoard"

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__()
        self._root = Path(log_dir)

    def copied(self, search: str) -> set[int]:
        return {int(path.name) for path in (self._root / search).glob("*") if path.name.isdecimal()}

    def copy(
        self, search: str, result: TrialResult, measurements: Sequence[tuple[int, str, float]]
    ) -> None:
        folder = self._root / search / f"{result.number}"
        # Renamed when complete.
        part = self._root / f".{search}-{result.number}.part"
        shutil.rmtree(part, ignore_errors=True)
        start_s, end_s = seconds(result.start_time), seconds(result.end_time)
        parameters = {
            name: value if isinstance(value, bool | int | float) else f"{value}"
            for name, value in result.parameters.items()
        }
        writer = EventFileWriter(f"{part}")
        try:
            begin = summary_v2.hparams_pb(parameters, f"{search}-{result.number}", start_s)
            writer.add_event(Event(wall_time=start_s, summary=begin))
            for step, metric, value in measurements:
                scalar = Summary(value=[Summary.Value(tag=metric, simple_value=value)])
                writer.add_event(Event(wall_time=end_s, step=step, summary=scalar))
            writer.add_event(Event(wall_time=end_s, summary=_session_end(result.state, end_s)))
        finally:
            writer.close()
        folder.parent.mkdir(parents=True, exist_ok=True)
        part.rename(folder)


def _session_end(state: str, end_s: float) -> Summary:
    """The end of a trial for the HPARAMS tab.

    TensorBoard's own function for it needs TensorFlow.
    """
    status = api_pb2.STATUS_SUCCESS if state == "succeeded" else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=end_s)
    described = metadata.create_summary_metadata(
        plugin_data_pb2.HParamsPluginData(session_end_info=end)
    )
    tag = metadata.SESSION_END_INFO_TAG
    return Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])
