"""The names that code gives to scores and metrics, read from it without running it."""

from __future__ import annotations

from evalharness.pytest_plugin.known_names.recorded import names_recorded, names_returned

__all__ = ["names_recorded", "names_returned"]
