"""The subcommands of `evalharness`, listed in `evalharness/cli/__init__.py`. Heavy modules are imported when a command runs.

A command gets its parsed options and returns an exit code; `main` prints the `EvalHarnessError` that a command raises.
"""
