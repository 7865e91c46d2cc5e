"""`study.plot`: the figures of a stored search, for notebooks and papers.

Vega-Lite; imported when first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller import app
from controller.report import drawing, figures, ranking

if TYPE_CHECKING:
    from controller.report.record import ExperimentRecord


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as a Vega-Lite specification.

    A notebook draws it when it is the last value of a cell.
    """

    spec: dict[str, Any]

    def save(self, path: str | Path) -> None:
        """Write the figure to a .svg, .png or .json file.

        Raises:
            InvalidArgument: The file's name has another ending.
        """
        drawing.write(self.spec, Path(path))

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        return {
            "application/vnd.vegalite.v5+json": self.spec,
            "image/svg+xml": drawing.svg(self.spec),
            "text/plain": repr(self.spec["title"]),
        }


class Plots:
    """Each method reads the store and returns a figure of what is there by then."""

    def __init__(self, record: Callable[[], ExperimentRecord]) -> None:
        """record: reads the search with its measurements."""
        self._record = record

    def history(self) -> Figure:
        """The value of each trial, and the best so far."""
        return self._figure("history")

    def front(self) -> Figure:
        """Two objectives against each other, with the Pareto front.

        Raises KeyError: there is one objective.
        """
        return self._figure("front")

    def curves(self) -> Figure:
        """The objective of each trial by step."""
        return self._figure("curves")

    def parallel(self) -> Figure:
        """Parallel coordinates of the succeeded trials."""
        return self._figure("parallel")

    def slice(self) -> Figure:
        """The value over each parameter."""
        return self._figure("slice")

    def contour(self) -> Figure:
        """The mean value over two parameters."""
        return self._figure("contour")

    def importance(self) -> Figure:
        """How much each parameter matters for a good value."""
        return self._figure("importance")

    def timeline(self) -> Figure:
        """Each attempt from its start to its end."""
        return self._figure("timeline")

    def _figure(self, name: str) -> Figure:
        record = ranking.ranked(self._record())
        if name not in figures.available(record):
            raise KeyError(
                f"no figure {name!r} of this search; there are "
                f"{', '.join(figures.available(record))}"
            )
        if name == "importance":
            record = app.query.with_importances(record)
        return Figure(figures.FIGURES[name].draw(record))
