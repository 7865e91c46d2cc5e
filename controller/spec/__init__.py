"""Read experiment files into a validated `ExperimentSpec`,
and report every problem with its place and its cure.

Reading a file needs neither the service nor a cluster. YAML is imported only when text is read.
"""

from controller.core.substitute import fill_data, render
from controller.spec.document import (
    REVISABLE,
    SETTABLE,
    Change,
    allowed_in_extension,
    allowed_in_revision,
    allowed_while_running,
    diff,
    from_document,
    is_label,
    is_renaming,
    unknown_keys,
)
from controller.spec.native import SUSPEND, schema
from controller.spec.problems import LocatedProblem, NoConfigMap, SpecErrors
from controller.spec.reading import ConfigMapOf, Document, ReadOptions, read, read_path, written
from controller.spec.redaction import redacted, redacted_document
from controller.spec.writing import as_yaml, file_text, starter

__all__ = [
    "REVISABLE",
    "SETTABLE",
    "SUSPEND",
    "Change",
    "ConfigMapOf",
    "Document",
    "LocatedProblem",
    "NoConfigMap",
    "ReadOptions",
    "SpecErrors",
    "allowed_in_extension",
    "allowed_in_revision",
    "allowed_while_running",
    "as_yaml",
    "diff",
    "file_text",
    "fill_data",
    "from_document",
    "is_label",
    "is_renaming",
    "read",
    "read_path",
    "redacted",
    "redacted_document",
    "render",
    "schema",
    "starter",
    "unknown_keys",
    "written",
]
