"""The requests that every shell around tuner can make: one module per request (validate, run, extend, stop…).

Requests take typed values, and return typed values or raise typed errors. This package uses no argparse, no terminal
and no exit codes, and prints nothing: notices go to a callback or are part of the result.

Importing this package imports none of its modules: each is imported when it is first used as an attribute.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import submodules

if TYPE_CHECKING:
    from controller.app import attempt_logs as attempt_logs
    from controller.app import csv_source as csv_source
    from controller.app import csv_states as csv_states
    from controller.app import delete as delete
    from controller.app import detached as detached
    from controller.app import doctor as doctor
    from controller.app import enqueue as enqueue
    from controller.app import experiment_file as experiment_file
    from controller.app import experiment_service as experiment_service
    from controller.app import experiments as experiments
    from controller.app import extend as extend
    from controller.app import following as following
    from controller.app import import_sources as import_sources
    from controller.app import import_trials as import_trials
    from controller.app import local_experiments as local_experiments
    from controller.app import machine as machine
    from controller.app import provenance as provenance
    from controller.app import query as query
    from controller.app import recovery as recovery
    from controller.app import retry as retry
    from controller.app import revise as revise
    from controller.app import run as run
    from controller.app import runtimes as runtimes
    from controller.app import sample_manifests as sample_manifests
    from controller.app import signals as signals
    from controller.app import state_directory as state_directory
    from controller.app import stop as stop
    from controller.app import stored_studies as stored_studies
    from controller.app import suggestion_service as suggestion_service
    from controller.app import trouble_file as trouble_file
    from controller.app import validate as validate
    from controller.app import workspace as workspace

__getattr__ = submodules(__name__)
