"""What the simulation raises when a promise is broken."""


class Violation(AssertionError):
    """An invariant does not hold."""
