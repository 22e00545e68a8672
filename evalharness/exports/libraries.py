"""Optional libraries, imported when an export needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evalharness.errors import MissingDependency
from evalharness.installing import missing_package

__all__ = ["load"]


def load(module: str, extra: str) -> Any:
    """Return the imported module; `MissingDependency` says which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependency(missing_package("this export", error, extra)) from error
