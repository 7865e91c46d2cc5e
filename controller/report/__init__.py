"""Show experiments to people and programs: pure functions from records to rows, JSON and text.

This package reads no store and calls no service; `controller.app` provides the records. Only `live`
and `lines` draw while an experiment runs.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from controller.report import drawing as drawing
    from controller.report import ending as ending
    from controller.report import figures as figures
    from controller.report import formatting as formatting
    from controller.report import html_page as html_page
    from controller.report import live as live
    from controller.report import output_file as output_file
    from controller.report import plain_data as plain_data
    from controller.report import text_tables as text_tables

__getattr__ = lazily(__name__)
