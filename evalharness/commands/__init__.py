"""The subcommands of `evalharness`, each in a module of its own with `add(commands)`. What is heavy is imported when a command runs.

A command takes the parsed options and returns its exit code: 0 done, 1 it could not be done, or what it judged did not pass.
"""
