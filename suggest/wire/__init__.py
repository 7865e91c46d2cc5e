"""Protobuf to nouns and back: only this package, `suggest.server.service` and `suggest.client.calls` see messages.

A reader appends every problem, with its path in the request, to a list it is given, and returns a usable placeholder;
the caller raises once, at the end. Writers trust the nouns, except for what protobuf cannot hold.
"""

from suggest.wire.study_messages import (
    read_pruning,
    read_space,
    read_spec,
    read_study,
    write_pruning,
    write_space,
    write_spec,
    write_study,
)
from suggest.wire.trial_messages import (
    read_finished,
    read_import_result,
    read_measurement,
    read_measurements,
    read_outcome,
    read_states,
    read_summary,
    read_trial,
    write_finished,
    write_import_result,
    write_measurement,
    write_outcome,
    write_states,
    write_summary,
    write_trial,
)
from suggest.wire.values import (
    Problems,
    raise_if,
    read_duration,
    read_labels,
    read_value,
    read_values,
    write_duration,
    write_value,
    write_values,
)

__all__ = [
    "Problems",
    "raise_if",
    "read_duration",
    "read_finished",
    "read_import_result",
    "read_labels",
    "read_measurement",
    "read_measurements",
    "read_outcome",
    "read_pruning",
    "read_space",
    "read_spec",
    "read_states",
    "read_study",
    "read_summary",
    "read_trial",
    "read_value",
    "read_values",
    "write_duration",
    "write_finished",
    "write_import_result",
    "write_measurement",
    "write_outcome",
    "write_pruning",
    "write_space",
    "write_spec",
    "write_states",
    "write_study",
    "write_summary",
    "write_trial",
    "write_value",
    "write_values",
]
