"""Errors that end a trial with one sentence and an exit code that Tuner understands.

Other exceptions are bugs.
"""

from __future__ import annotations


class TrialError(Exception):
    """The message is one sentence for stderr."""

    exit_code = 1


class DataError(TrialError):
    """There is no usable data."""


class NoDevice(TrialError):
    """The requested device is not available."""


class OutOfMemory(TrialError):
    """Tuner recognizes the failure class by the first words of the message."""


class ConfigurationError(TrialError):
    """The command line, or the workers together, cannot train a network."""

    exit_code = 2


class Infeasible(TrialError):
    """These parameters cannot be used with these data.

    Tuner reads the reason as the last line of stdout.
    """

    exit_code = 42


class Lost(TrialError):
    """Another worker is gone or never joined.

    The parameters are fine, and another attempt may succeed.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits
