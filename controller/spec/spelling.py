"""Guess which key or word a misspelled one was meant to be.

The messages are in `sections` and `fields`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

# The names that other tools and other people use for this file's keys and words.
FOREIGN: Mapping[str, tuple[str, ...]] = {
    "minimum": ("min",),
    "low": ("min",),
    "lower": ("min",),
    "maximum": ("max",),
    "high": ("max",),
    "upper": ("max",),
    "choices": ("values",),
    "options": ("values",),
    "categories": ("values",),
    "list": ("values",),
    "log": ("scale",),
    "distribution": ("scale",),
    "condition": ("when",),
    "goal": ("target", "direction"),
    "objectiveMetricName": ("metric",),
    "name": ("metric",),
    "maxTrialCount": ("trials", "budget.trials"),
    "maxTrials": ("trials", "budget.trials"),
    "nTrials": ("trials", "budget.trials"),
    "maxFailedTrialCount": ("failedTrials", "budget.failedTrials"),
    "maxFailedTrials": ("failedTrials", "budget.failedTrials"),
    "maxDuration": ("wallClock", "budget.wallClock"),
    "walltime": ("wallClock",),
    "timeout": ("wallClock", "trial.timeout"),
    "parallelTrialCount": ("parallelism",),
    "maxConcurrent": ("parallelism",),
    "nJobs": ("parallelism",),
    "jobs": ("parallelism",),
    "sampler": ("algorithm",),
    "earlyStopping": ("pruning",),
    "pruner": ("pruning",),
    "searchSpace": ("parameters",),
    "space": ("parameters",),
    "params": ("parameters",),
    "algorithmName": ("name",),
    "algorithmSettings": ("settings",),
    "randomState": ("seed",),
    "trialTemplate": ("trial",),
    "cmd": ("command",),
    "entrypoint": ("command",),
    "environment": ("env",),
    "workingDirectory": ("workingDir",),
    "workDir": ("workingDir",),
    "cwd": ("workingDir",),
    "chdir": ("workingDir",),
    "gpuIds": ("devices",),
    "visibleDevices": ("devices",),
    "cudaVisibleDevices": ("devices",),
    "mem": ("memory",),
    "gpus": ("gpu",),
    "cpus": ("cpu",),
    "serviceAccountName": ("serviceAccount",),
    "priorityClassName": ("priorityClass",),
    "runtimeClassName": ("runtimeClass",),
    "topologySpreadConstraints": ("topologySpread",),
    "scheduler": ("schedulerName",),
    "terminationGracePeriodSeconds": ("gracePeriod",),
    "activeDeadlineSeconds": ("timeout",),
    "mountPath": ("mount",),
    "claimName": ("claim",),
    "persistentVolumeClaim": ("claim",),
    "oom": ("outOfMemory",),
    "maximise": ("maximize",),
    "minimise": ("minimize",),
    "max": ("maximize",),
    "min": ("minimize",),
    "double": ("float",),
    "number": ("float",),
    "uniform": ("float",),
    "loguniform": ("float",),
    "logarithmic": ("log",),
    "abort": ("stop",),
    "integer": ("int",),
    "categorical": ("choice",),
    "discrete": ("choice",),
}

# In words up to this length, one other letter makes another word.
SHORT = 3


def meant_by(
    word: str, options: Iterable[str], *, fits: Callable[[str], bool] = lambda _: True
) -> str | None:
    """Return the option that `word` was meant to be; None if there is no likely one.

    An option is likely if it is spelled similarly, if other tools call it `word`, or if
    `word` is its abbreviation. Short words that begin differently are not similar: tpu is not
    cpu. `fits` says whether an option can have the given value, for words with several meanings
    elsewhere.
    """
    candidates = list(options)
    by_plain = {_plain(option): option for option in candidates}
    if _plain(word) in by_plain:
        return by_plain[_plain(word)]
    if foreign := [
        option for option in FOREIGN_PLAIN.get(_plain(word), ()) if option in candidates
    ]:
        return next(filter(fits, foreign), foreign[0])
    for option in candidates:
        if len(option) > 1 and _initials(word) == option.lower():
            return option
    # Lazy: it costs milliseconds and only misspellings need it.
    import difflib

    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not close or (len(word) <= SHORT and close[0][0] != word[0]):
        return None
    return close[0]


def _plain(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def _initials(words: str) -> str:
    return "".join(part[0] for part in words.lower().replace("-", "_").split("_") if part)


FOREIGN_PLAIN = {_plain(word): options for word, options in FOREIGN.items()}
