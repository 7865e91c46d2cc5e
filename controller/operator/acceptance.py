"""Whether a resource's spec is accepted: by the condition Accepted, and by the webhook before it.

Both raise what a person reads. What only the cluster or the study can say is found out later, when
the experiment begins or grows.
"""

from __future__ import annotations

from controller.app.experiment_service import ExperimentService
from controller.app.extend import allowed_extension
from controller.core.model import Experiment
from controller.operator.experiments import HostedExperiments
from controller.operator.policy import Policy, check_policy
from controller.operator.resource import (
    ExperimentResource,
    FromCluster,
    document_of,
)
from controller.spec import Change, Document, allowed_in_revision


def accepted_document(resource: ExperimentResource, policy: Policy, added: FromCluster) -> Document:
    """Return the resource's experiment. Raises InvalidArgument with all that is wrong with it."""
    document = document_of(resource, added, prices=policy.prices)
    check_policy(document.spec, policy)
    return document


def accepted_changes(
    experiments: HostedExperiments, stored: Experiment, document: Document
) -> tuple[Document, list[Change]]:
    """Return the document with what the stored experiment has besides, and what it changes.

    Raises FailedPrecondition: some of it would make another search.
    """
    service = ExperimentService(experiments)
    completed = service.completed(stored, document)
    changes = allowed_extension(stored, completed)
    if changes and all(map(allowed_in_revision, changes)):
        service.allowed_changes(stored, completed)
    return completed, changes
