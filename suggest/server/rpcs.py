"""The table of RPCs. A method that is not in the table is closed to every token.

For each method the table has the verb that a token needs, the field of the request that names the
resource, the allowed number of items, and whether the call is audited. Whether a method writes
follows from the verb. Limits on nested messages are in `suggest.server.request_sizes`; quota is
reserved where rows are written, in `suggest.server.quota`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from suggest import names
from suggest.errors import InvalidArgument, Problem
from suggest.katib import NAMESPACE
from suggest.server.access.caller import AccessVerb
from suggest.study import StudyName


class Form(enum.Enum):
    """The form of the name of a resource."""

    NAMESPACE = "a namespace"
    NAMESPACES = "a namespace, or - for all that the caller may read"
    STUDY = "a study"
    TRIAL = "a trial"
    TRIALS = "a trial, or - for all trials of the study"
    KATIB = "whatever a request of Katib's names; all of it is in one namespace"


@dataclass(frozen=True, slots=True)
class Items:
    """The limit of the items of a repeated field, or of the value of a number field; at least 1."""

    field: str
    most: int

    def problems(self, request: object) -> list[Problem]:  # any message
        value = getattr(request, self.field)
        is_number = isinstance(value, int)
        count = value if is_number else len(value)
        if 1 <= count <= self.most:
            return []
        unit = "trials at once; ask for" if is_number else "at once; send"
        return [Problem(self.field, f"{count} {unit} 1 to {self.most}")]


@dataclass(frozen=True, slots=True)
class Rpc:
    """The row of one method.

    `field` is the request's field with the name of the resource in the given `form`, "" if there is
    none. `audited`: calls are in the audit log if they write. `proposes`: calls may compute for
    long, while other calls of the study continue. `framed`: parsing a request leaves its items as
    bytes, so it takes hardly any time or memory.
    """

    verb: AccessVerb
    field: str = ""
    form: Form = Form.STUDY
    items: Items | None = None
    audited: bool = True
    proposes: bool = False
    framed: bool = False

    @property
    def writes(self) -> bool:
        """Whether calls of the method write, so that for the same study they run one at a time."""
        return self.verb is not AccessVerb.READ

    @property
    def recorded(self) -> bool:
        return self.writes and self.audited


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource that a call is about, parsed from the request once.

    `namespace` is set even if the rest of the name is malformed, so that authorization precedes
    validation; None if the name has no namespace. `study` and `number` are None if the name has
    none. `problems` are those of the name and of the number of items.
    """

    text: str = ""
    namespace: str | None = None
    study: StudyName | None = None
    number: int | None = None
    problems: tuple[Problem, ...] = ()


NO_RESOURCE: Final = Resource()

RPCS: Mapping[str, Rpc] = {
    "CreateStudy": Rpc(AccessVerb.MANAGE, "parent", Form.NAMESPACE),
    "GetStudy": Rpc(AccessVerb.READ, "name"),
    "ListStudies": Rpc(AccessVerb.READ, "parent", Form.NAMESPACES),
    "UpdateStudy": Rpc(AccessVerb.MANAGE, "study.name"),
    "DeleteStudy": Rpc(AccessVerb.MANAGE, "name"),
    "ValidateStudy": Rpc(AccessVerb.READ),
    "ListAlgorithms": Rpc(AccessVerb.READ),
    "AddTrial": Rpc(AccessVerb.RUN, "parent"),
    "ImportTrials": Rpc(AccessVerb.RUN, "parent", items=Items("trials", 1000)),
    "GetTrial": Rpc(AccessVerb.READ, "name", Form.TRIAL),
    "ListTrials": Rpc(AccessVerb.READ, "parent"),
    "UpdateTrial": Rpc(AccessVerb.RUN, "trial.name", Form.TRIAL),
    "DeleteTrial": Rpc(AccessVerb.MANAGE, "name", Form.TRIAL),
    "SuggestTrials": Rpc(AccessVerb.RUN, "parent", items=Items("count", 1000), proposes=True),
    "ReportMeasurements": Rpc(
        AccessVerb.RUN, "name", Form.TRIAL, items=Items("measurements", 10_000)
    ),
    "DecideParameter": Rpc(AccessVerb.RUN, "name", Form.TRIAL),
    # Not audited: it stores nothing, and each running trial sends it three times a minute.
    "RenewLeases": Rpc(AccessVerb.RUN, "parent", items=Items("leases", 1000), audited=False),
    "CompleteTrial": Rpc(AccessVerb.RUN, "name", Form.TRIAL),
    "ReopenTrials": Rpc(AccessVerb.RUN, "parent", items=Items("numbers", 1000)),
    "ListMeasurements": Rpc(AccessVerb.READ, "parent", Form.TRIALS),
    "ListOptimalTrials": Rpc(AccessVerb.READ, "parent"),
    "EstimateStudy": Rpc(AccessVerb.READ, "name", proposes=True),
}

# Katib's methods, whose names differ from ours. Requests for one experiment wait for each other.
KATIB_RPCS: Mapping[str, Rpc] = {
    "GetSuggestions": Rpc(AccessVerb.RUN, "experiment", Form.KATIB, proposes=True, framed=True),
    "ValidateAlgorithmSettings": Rpc(AccessVerb.READ, "", Form.KATIB),
    "GetEarlyStoppingRules": Rpc(AccessVerb.READ, "", Form.KATIB, framed=True),
    "ValidateEarlyStoppingSettings": Rpc(AccessVerb.READ, "", Form.KATIB),
    "SetTrialStatus": Rpc(AccessVerb.RUN, "trial_name", Form.KATIB),
    # Not audited: every running trial reports.
    "ReportObservationLog": Rpc(AccessVerb.RUN, "trial_name", Form.KATIB, audited=False),
    "GetObservationLog": Rpc(AccessVerb.READ, "trial_name", Form.KATIB),
    "DeleteObservationLog": Rpc(AccessVerb.RUN, "trial_name", Form.KATIB),
}

# for methods of other services; all methods of this service are in the tables
_UNKNOWN = Rpc(AccessVerb.MANAGE)


def rpc_of(method: str) -> Rpc:
    """Return the row for a full path (`/package.Service/Name`).

    A method without a row counts as a write.
    """
    return known_rpc(method) or _UNKNOWN


def known_rpc(method: str) -> Rpc | None:
    """Return the row for a full path or a bare name, None if there is none."""
    name = method.rpartition("/")[2]
    return RPCS.get(name) or KATIB_RPCS.get(name)


def resource_of(rpc: Rpc, request: Any) -> Resource:  # any message
    """Parse the resource of a request.

    Problems are in the result, so that the method raises all problems at once.
    """
    if rpc.form is Form.KATIB:
        return _of_katib(rpc, request)
    sizes = () if rpc.items is None else tuple(rpc.items.problems(request))
    if not rpc.field:
        return Resource(problems=sizes) if sizes else NO_RESOURCE
    text: str = reduce(getattr, rpc.field.split("."), request)
    namespace = names.namespace_in(text)
    try:
        study, number = _parsed(rpc.form, text, rpc.field)
    except InvalidArgument as e:
        return Resource(text, namespace, problems=(*e.problems, *sizes))
    return Resource(text, namespace, study, number, sizes)


def _of_katib(rpc: Rpc, request: object) -> Resource:  # any message
    """Return the resource of a request of Katib's.

    Requests for one experiment have the same study, for the queue.
    """
    named = getattr(request, rpc.field) if rpc.field else ""
    if isinstance(named, bytes):  # an experiment that is not parsed yet
        digest = hashlib.sha256(named).hexdigest()[:16]
        return Resource(
            f"namespaces/{NAMESPACE}", NAMESPACE, StudyName(NAMESPACE, f"experiment-{digest}")
        )
    return Resource(
        f"namespaces/{NAMESPACE}/trials/{named[:253]}" if named else f"namespaces/{NAMESPACE}",
        NAMESPACE,
    )


def _parsed(form: Form, text: str, field: str) -> tuple[StudyName | None, int | None]:
    match form:
        case Form.NAMESPACE | Form.NAMESPACES:
            names.check_namespace(text, field, wildcard=form is Form.NAMESPACES)
            return None, None
        case Form.STUDY:
            return names.parse_study(text, field), None
    study, number = names.parse_trials(text, field)
    if number is None and form is Form.TRIAL:
        raise InvalidArgument.at(field, "expected the number of one trial, got -")
    return study, number
