"""Katib's gRPC services over the studies of this server: Katib's experiments and histories become
studies and trials.

All knowledge of Katib's messages and error texts is here. gRPC is not:
`suggest.server` handles the calls.
"""

NAMESPACE = "katib"  # of all studies for Katib's clients, whose requests name no namespace
