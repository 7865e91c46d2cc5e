"""The exception that the simulation raises when an invariant is violated."""


class InvariantViolation(AssertionError):
    """An invariant does not hold."""
