"""The controller: reads experiments, runs their trials, and tells the suggestion service how they ended."""


def version() -> str:
    """Return the version of the installed package, or `0+source` in a checkout that was not installed."""
    from importlib.metadata import PackageNotFoundError, version  # lazy: slower than all of `tuner --help`

    try:
        return version("tuner")
    except PackageNotFoundError:
        return "0+source"
