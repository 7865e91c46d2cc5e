"""The controller: reads experiments, runs their trials, and tells the suggestion service how they ended."""


def version() -> str:
    """Of the installed package; `0+source` in a checkout that was not installed."""
    from importlib.metadata import PackageNotFoundError, version  # here: slower than all of `tuner --help`

    try:
        return version("tuner")
    except PackageNotFoundError:
        return "0+source"
