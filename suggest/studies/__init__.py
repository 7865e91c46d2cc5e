"""The suggestion service without gRPC: sessions, trial leases and dispatch around the engine.

`suggest.server` answers calls with this package. Programs that only read a store use it without a server.
"""

from suggest.studies.study_service import StudyService, check

__all__ = ["StudyService", "check"]
