"""The requests that every shell around tuner can make:
one module per request (validate, run, extend, stop…).

Requests take typed values, and return typed values or raise typed errors.
This package uses no argparse, no terminal and no exit codes, and prints
nothing: notices go to a callback or are part of the result.

Importing this package imports none of its modules: each is imported
when it is first used as an attribute.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from controller.app import cluster_workspace as cluster_workspace
    from controller.app import controller_api as controller_api
    from controller.app import delete as delete
    from controller.app import doctor as doctor
    from controller.app import experiment_file as experiment_file
    from controller.app import experiments as experiments
    from controller.app import extend as extend
    from controller.app import import_sources as import_sources
    from controller.app import import_trials as import_trials
    from controller.app import local_experiments as local_experiments
    from controller.app import pack as pack
    from controller.app import query as query
    from controller.app import recovery as recovery
    from controller.app import reproduce as reproduce
    from controller.app import rerun as rerun
    from controller.app import retry as retry
    from controller.app import revise as revise
    from controller.app import run as run
    from controller.app import signals as signals
    from controller.app import state_directory as state_directory
    from controller.app import stop as stop
    from controller.app import stored_studies as stored_studies
    from controller.app import suggestion_service as suggestion_service
    from controller.app import surroundings as surroundings
    from controller.app import validate as validate

__getattr__ = lazily(__name__)
