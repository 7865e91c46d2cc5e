"""What each method of the service needs: the one table. A method that is not in it is open to nobody with a token.

Pure. A test holds it to the proto: no method without an entry, and each field there is a name in the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from suggest.server.access.grants import Verb


@dataclass(frozen=True, slots=True)
class Need:
    """`verb`, in the namespace of the resource that `field` of the request names; without a field, in any.

    `filtered`: asked for all namespaces, the method itself leaves out those that the caller may not see.
    """

    verb: Verb
    field: str = ""
    filtered: bool = False


_READ, _RUN, _MANAGE = Verb.READ, Verb.RUN, Verb.MANAGE

NEEDS: Mapping[str, tuple[Need, ...]] = {
    "CreateStudy": (Need(_MANAGE, "parent"),),
    "GetStudy": (Need(_READ, "name"),),
    "ListStudies": (Need(_READ, "parent", filtered=True),),
    "UpdateStudy": (Need(_MANAGE, "study.name"),),
    "DeleteStudy": (Need(_MANAGE, "name"),),
    "ValidateStudy": (Need(_READ),),
    "ListAlgorithms": (Need(_READ),),
    "AddTrial": (Need(_RUN, "parent"),),
    "ImportTrials": (Need(_RUN, "parent"),),
    "GetTrial": (Need(_READ, "name"),),
    "ListTrials": (Need(_READ, "parent"),),
    "UpdateTrial": (Need(_RUN, "trial.name"),),
    "DeleteTrial": (Need(_MANAGE, "name"),),
    "SuggestTrials": (Need(_RUN, "parent"),),
    "ReportMeasurements": (Need(_RUN, "name"),),
    "RenewLeases": (Need(_RUN, "parent"),),
    "CompleteTrial": (Need(_RUN, "name"),),
    "ReopenTrials": (Need(_RUN, "parent"),),
    "ListMeasurements": (Need(_READ, "parent"),),
    "ListOptimalTrials": (Need(_READ, "parent"),),
}


_STORES_NOTHING = "RenewLeases"  # and comes three times a minute from each running trial


def changes(method: str) -> bool:
    """Whether the method, by its bare name, changes what is stored. An unknown one is taken to."""
    return method != _STORES_NOTHING and any(need.verb is not _READ for need in NEEDS.get(method, (Need(_MANAGE),)))


def resource(request: Any, need: Need) -> str:  # any message
    """What `need.field` of the request says."""
    text: str = reduce(getattr, need.field.split("."), request)
    return text
