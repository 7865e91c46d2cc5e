"""The documentation site: what `make docs` needs beside `docs/` and `mkdocs.yml`.

Not installed with the program.
"""
