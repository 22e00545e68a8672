"""The subcommands of `evalharness`, each in a module of its own, listed in `cli.py`. What is heavy is imported when a command runs.

A command gets its parsed options and returns an exit code of `exit_codes.py`; an `EvalHarnessError` that it raises is shown by `cli.py`.
"""
