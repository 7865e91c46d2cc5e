"""Draw figures in files and pages with vl-convert, which runs Vega-Lite
without a browser and a network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controller.report import output_file
from suggest.errors import InvalidArgument

FORMATS = ("svg", "png", "json")
SCALE = 2.0  # pixels of a PNG per pixel of the figure


def bundle() -> str:
    """Return the JavaScript of Vega, Vega-Lite and vega-embed, some 900 KB."""
    text: str = _vl_convert().javascript_bundle()
    return text


def check_format(path: Path) -> str:
    """Return the format that the file's name asks for. Raises InvalidArgument."""
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise InvalidArgument.at(
            "--to", f"{path.name}: not an {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        )
    return form


def write(figure: dict[str, Any], path: Path) -> None:
    """Write a figure in the format of the file's name. Raises InvalidArgument and OSError."""
    form = check_format(path)
    if form == "json":
        output_file.write(path, json.dumps(figure, ensure_ascii=False))
    elif form == "svg":
        output_file.write(path, svg(figure))
    else:
        output_file.write(
            path, _vl_convert().vegalite_to_png(_without_choices(figure), scale=SCALE)
        )


def svg(figure: dict[str, Any]) -> str:
    """Return the figure as SVG."""
    text: str = _vl_convert().vegalite_to_svg(_without_choices(figure))
    return text


def _without_choices(figure: dict[str, Any]) -> dict[str, Any]:
    """Return the figure without selection lists, which a picture cannot have."""
    given = figure.get("params", ())
    parameters = [{k: v for k, v in each.items() if k != "bind"} for each in given]
    return {**figure, "params": parameters} if parameters else figure


def _vl_convert() -> Any:  # Any: the package has no types
    # Loads a JavaScript engine of 90 MB.
    import vl_convert

    return vl_convert
