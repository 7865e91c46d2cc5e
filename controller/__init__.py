"""The controller: reads experiments, runs their trials,
and tells the suggestion service how they ended.
"""


def program() -> int:
    """Run the console script `tuner`, and return its exit code.

    Here, because Ctrl-C may come before the command line is imported.
    """
    try:
        from controller.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130  # ExitCode.INTERRUPTED, which may not be imported yet
