"""Refuses to import the libraries of real engines and browsers, in every Python process that has this folder in PYTHONPATH.

Python imports a module of this name as it starts. tests/fast_tier.py sets the variable, and reads `attempts` in its own process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NoReturn

REFUSED = frozenset({"accelerate", "max", "peft", "playwright", "torch", "torchvision", "transformers", "vllm", "xgrammar"})

attempts: list[str] = []
"""The libraries that were to be imported, in order."""


class RefusingLoader:
    """Loads nothing; the library's spec stays as it is, so that code can still ask whether it is installed."""

    def create_module(self, spec: ModuleSpec) -> NoReturn:
        attempts.append(spec.name)
        raise ImportError(f"{spec.name} is not imported in the fast tier of tests: mark the test or its module with pytest.mark.engine")

    def exec_module(self, module: ModuleType) -> None:
        """Never reached."""


class RefusingFinder:
    """Comes before all other finders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in REFUSED else None
        if spec is not None:
            spec.loader = RefusingLoader()  # type: ignore[assignment]
        return spec


sys.meta_path.insert(0, RefusingFinder)
