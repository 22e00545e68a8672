"""Optional libraries, imported when an export needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evalharness.api.errors import MissingDependency

__all__ = ["load"]


def load(module: str, extra: str) -> Any:
    """Return the imported module; `MissingDependency` says which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependency(f"{module} cannot be imported ({error}); install it with: pip install 'evalharness[{extra}]'") from error
