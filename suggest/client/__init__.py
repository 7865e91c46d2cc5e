"""Clients of the service: blocking (`Client`) and for event loops (`AsyncClient`).

`Client.study()` returns a study with a loop over trials.
gRPC is imported when the first client connects.
"""

from suggest.client.async_client import AsyncClient, Channel
from suggest.client.search_loop import OpenTrial, Search, maximize, minimize
from suggest.client.search_space import Choice, Float, Int
from suggest.client.sync_client import Client
from suggest.imports import FinishedTrial, ImportResult
from suggest.replies import KEEP, AlgorithmInfo, Keep, StudySummary, Suggestions
from suggest.space import Scale
from suggest.study import Constraint, Pruning, StudyName
from suggest.trial import Measurement, Outcome, Trial, TrialState

__all__ = [
    "KEEP",
    "AlgorithmInfo",
    "AsyncClient",
    "Channel",
    "Choice",
    "Client",
    "Constraint",
    "FinishedTrial",
    "Float",
    "ImportResult",
    "Int",
    "Keep",
    "Measurement",
    "OpenTrial",
    "Outcome",
    "Pruning",
    "Scale",
    "Search",
    "StudyName",
    "StudySummary",
    "Suggestions",
    "Trial",
    "TrialState",
    "maximize",
    "minimize",
]
