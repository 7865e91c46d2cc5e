"""The suggestion service without gRPC: sessions, trial leases and dispatch around the engine.

`suggest.server` answers calls with this package. Programs
that only read a store use `suggest.studies.reading`.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from suggest.studies.study_service import StudyService, check

__all__ = ["StudyService", "check"]
__getattr__ = lazily(__name__, dict.fromkeys(__all__, "study_service"))
