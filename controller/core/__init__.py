"""The pure core of the controller: its values, the state machine of an attempt, and the decisions.

Nothing in this package reads a clock, does I/O or draws random numbers.
`controller.loop` does all of that.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from controller.core import attempt as attempt
    from controller.core import budget as budget
    from controller.core import model as model

__getattr__ = lazily(__name__)
