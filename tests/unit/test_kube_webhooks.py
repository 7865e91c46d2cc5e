"""An unavailable webhook is told from one that refuses, by the messages of a real API server."""

from __future__ import annotations

import pytest

from controller.kube.errors import ApiError, unavailable_webhook

CALLED = (
    'Internal error occurred: failed calling webhook "mjobset.kb.io": failed to call webhook: Post '
)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(
            CALLED + '"https://10.0.0.1:443/mutate?timeout=10s": dial tcp 10.0.0.1:443: connect: '
            "connection refused",
            "webhook mjobset.kb.io does not answer (connection refused); is its operator running?",
            id="nothing listens",
        ),
        pytest.param(
            CALLED
            + '"https://jobset-webhook.jobset-system.svc:443/mutate": no endpoints available for '
            'service "x"',
            'webhook mjobset.kb.io does not answer (no endpoints available for service "x"); is '
            "its operator running?",
            id="no pod behind its service",
        ),
        pytest.param(
            'admission webhook "rules.example.org" denied the request: no: not today',
            "",
            id="denied",
        ),
    ],
)
def test_an_unavailable_webhook_is_not_a_refusal(message: str, said: str) -> None:
    assert unavailable_webhook(ApiError(500, "InternalError", message)) == said
