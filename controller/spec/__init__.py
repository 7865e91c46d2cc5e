"""Readers of experiment files: text to a validated `ExperimentSpec`, and every complaint with its place and its cure.

Asks nobody: neither the service nor a cluster is needed to read a file. YAML is imported when text is read, not before.
"""

from controller.spec.document import Change, allowed_in_revision, diff, from_document, spec_hash
from controller.spec.problems import Placed, SpecErrors
from controller.spec.reading import Document, read, read_path
from controller.spec.substitute import render

__all__ = [
    "Change",
    "Document",
    "Placed",
    "SpecErrors",
    "allowed_in_revision",
    "diff",
    "from_document",
    "read",
    "read_path",
    "render",
    "spec_hash",
]
