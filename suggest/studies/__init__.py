"""The studies of one store, in use: sessions, leases and dispatch around the engine. No gRPC.

`suggest.server` answers calls with it; programs that only read a store use it without a server.
"""

from suggest.studies.study_service import StudyService, check

__all__ = ["StudyService", "check"]
