"""Katib's EarlyStopping service: the median stopping rule,
as a value that sidecars compare with reports.

Golovin et al. 2017 (Vizier): a trial stops if its best value up to a step is worse than the median
of the running averages of the finished trials up to that step. Katib computes the mean of the
averages, and includes trials that ended before the step. Here only trials that reached the step and
were not stopped count, with their finite values.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from statistics import fmean, mean, median_high, median_low

from suggest import events
from suggest.errors import InvalidArgument, raise_if
from suggest.katib.observations import name_problems
from suggest.katib.parameters import finite
from suggest.katib.suggestions import MAX_TRIALS, parsed, parsed_experiment
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.frames_pb2 import StoppingFrame
from suggest.katib_settings import MEDIAN_DEFAULTS, MEDIAN_STOPPING
from suggest.storage.observation_log import ObservationLog

MEDIAN = "medianstop"
_REMEMBERED = 100_000  # averages of trials
_MIN_TRIALS, _START_STEP = MEDIAN_DEFAULTS
MOST_STEPS = 100_000


class KatibEarlyStopping:
    """Implements the RPCs of the service from the reports in `log`. Thread-safe and blocking."""

    def __init__(self, log: ObservationLog) -> None:
        self._log = log
        self._averages: OrderedDict[tuple[str, str, int], float] = OrderedDict()
        self._lock = threading.Lock()  # of the averages

    def validate(
        self, request: pb.ValidateEarlyStoppingSettingsRequest
    ) -> pb.ValidateEarlyStoppingSettingsReply:
        """Check settings. Raises InvalidArgument with Katib's texts."""
        read_settings(request.early_stopping)
        return pb.ValidateEarlyStoppingSettingsReply()

    def set_trial_status(self, request: pb.SetTrialStatusRequest) -> pb.SetTrialStatusReply:
        """Record that a sidecar has stopped a trial. Raises InvalidArgument.

        Its value is that of a part of its training. This server cannot change the Trial object.
        """
        raise_if(name_problems(request.trial_name))
        self._log.mark_stopped(request.trial_name)
        events.log_event("katib_trial_stopped", trial=request.trial_name)
        return pb.SetTrialStatusReply()

    def rules(self, frame: StoppingFrame) -> pb.GetEarlyStoppingRulesReply:
        """Return the stopping rule, or none while too few trials have reached the step.

        Raises InvalidArgument.
        """
        if len(frame.trials) > MAX_TRIALS:
            raise InvalidArgument.at(
                "trials", f"{len(frame.trials):,} trials; at most {MAX_TRIALS:,}"
            )
        spec = parsed_experiment(frame.experiment).spec
        settings, objective = _settings_of(spec.early_stopping.algorithm_settings), spec.objective
        metric, start_step = objective.objective_metric_name, settings[_START_STEP]
        succeeded = []
        for place, raw in enumerate(frame.trials):
            trial = parsed(pb.Trial, raw, f"trials[{place}]")
            if trial.status.condition == pb.TrialStatus.SUCCEEDED:
                succeeded.append(trial.name)
        averages = self._averages_of(succeeded, metric, start_step)
        if len(averages) < settings[_MIN_TRIALS]:
            if len(succeeded) >= settings[_MIN_TRIALS]:
                events.warn(
                    "katib_reports_missing",
                    metric=metric,
                    succeeded=len(succeeded),
                    reported=len(averages),
                )
            return pb.GetEarlyStoppingRulesReply()
        rule = pb.EarlyStoppingRule(
            name=metric,
            value=str(_average([median_low(averages), median_high(averages)])),
            comparison=pb.LESS if objective.type == pb.MAXIMIZE else pb.GREATER,
            start_step=start_step,
        )
        return pb.GetEarlyStoppingRulesReply(early_stopping_rules=[rule])

    def _averages_of(self, names: Sequence[str], metric: str, start_step: int) -> list[float]:
        """Return the average of each trial's first `start_step` values, if it reported as many."""
        with self._lock:
            known = {
                name: found
                for name in names
                if (found := self._averages.get((name, metric, start_step))) is not None
            }
        asked = [name for name in names if name not in known]
        stopped = self._log.stopped(asked)
        asked = [name for name in asked if name not in stopped]
        for name, texts in (
            self._log.first_values(asked, metric, start_step).items() if asked else ()
        ):
            values = [value for text in texts if (value := finite(text)) is not None]
            if len(texts) == start_step and values:
                known[name] = _average(values)
        with self._lock:
            for name in asked:
                if name in known:
                    self._averages[name, metric, start_step] = known[name]
            while len(self._averages) > _REMEMBERED:
                self._averages.popitem(last=False)
        return list(known.values())


def _average(values: Sequence[float]) -> float:
    try:
        return fmean(values)
    except OverflowError:  # the sum is not a double, but the average is
        return mean(values)


def read_settings(spec: pb.EarlyStoppingSpec) -> dict[str, int]:
    """Return all settings, including defaults. Raises InvalidArgument with Katib's texts."""
    if spec.algorithm_name != MEDIAN:
        raise InvalidArgument.at("", f"unknown algorithm name {spec.algorithm_name[:80]}")
    return _settings_of(spec.algorithm_settings)


def _settings_of(texts: Iterable[pb.EarlyStoppingSetting]) -> dict[str, int]:
    settings = dict(MEDIAN_DEFAULTS)
    for given in texts:
        if given.name not in settings:
            raise InvalidArgument.at(
                "", f"unknown setting {given.name[:80]} for algorithm {MEDIAN}"
            )
        try:
            value = int(given.value)
        except ValueError as e:
            raise InvalidArgument.at(
                "", f"failed to validate {given.name}({given.value[:80]}): {e}"
            ) from None
        setting = MEDIAN_STOPPING[given.name]
        if not setting.holds(value):
            raise InvalidArgument.at("", setting.rule)
        if value > MOST_STEPS:
            raise InvalidArgument.at(
                "", f"failed to validate {given.name}({value}): at most {MOST_STEPS}"
            )
        settings[given.name] = value
    return settings
