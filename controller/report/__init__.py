"""Show experiments to people and programs: pure functions from records to rows, JSON and text.

This package reads no store and calls no service; `controller.app` provides the records. Only `live`
and `lines` draw while an experiment runs.
"""
