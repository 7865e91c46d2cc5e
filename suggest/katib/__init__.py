"""Katib's own gRPC services over the studies of this server: what Katib's clients send becomes studies and trials.

Knows Katib's messages, texts and habits; nothing else of the service does. No gRPC: `suggest.server` carries the calls.
"""

NAMESPACE = "katib"  # of all that Katib's clients make: their requests name none
