"""A finished run for other tools: its samples as one flat table, its metrics by training step for experiment trackers.

Everything is read from the run directory, so no secret can get in (`redaction.py`). The libraries are optional, and each is imported
in the one module that knows it; `MissingDependency` says how to install it.
"""
