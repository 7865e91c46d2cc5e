"""The command line: one module for each group of verbs.

Importing this package imports none of them.
"""

from suggest.lazy_module import lazily

TYPE_CHECKING = False  # importing typing takes longer than all of this

if TYPE_CHECKING:
    from controller.cli import arguments as arguments
    from controller.cli import check as check
    from controller.cli import cluster as cluster
    from controller.cli import completion as completion
    from controller.cli import exits as exits
    from controller.cli import invocation as invocation
    from controller.cli import program as program
    from controller.cli import terminal as terminal

__getattr__ = lazily(__name__)
