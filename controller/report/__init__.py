"""What people and their programs are shown of experiments: pure functions from the nouns to rows, JSON and text.

Reads no store and asks no service; `controller.app` brings the facts. Only `live` and `lines` draw while a run goes on.
"""
