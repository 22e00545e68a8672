"""Spreads the tests of `make test` over workers: file by file, the slowest first, all files that start vLLM on one worker."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

VLLM = "vLLM"
"""The unit of all files that start vLLM: they share engines, and two engines at once would compete for memory and cores."""

_STARTS_VLLM = re.compile(r"mark\.vllm|vllm_vlm_backend|vllm_endless|vllm_engine")
_PARAMETRIZED_BY_FOLDER = frozenset({"contract"})  # their conftest.py has the marker


class FileScheduling(LoadScopeScheduling):
    """Hands out whole files, so that fixtures of modules and classes are made once, as xdist's loadfile does."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._root = Path(config.rootpath)

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test."""
        return unit_of(self._root, nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the unit that is to begin next."""
        self.workqueue.move_to_end(min(self.workqueue, key=self._rank), last=False)
        super()._assign_work_unit(node)

    def _rank(self, unit: str) -> tuple[int, int]:
        """Return a smaller value for what is to begin earlier: at the end only short units should be left."""
        return cost_class(self._root, unit), -len(self.workqueue[unit])


@functools.cache
def unit_of(root: Path, path: str) -> str:
    """Return what the tests of a file are handed out with: the file's name, or `VLLM`."""
    file = root / path
    return VLLM if file.parent.name in _PARAMETRIZED_BY_FOLDER or _STARTS_VLLM.search(_source(file)) else path


@functools.cache
def cost_class(root: Path, unit: str) -> int:
    """Return 0 for vLLM, 1 for files with slow tests, 2 for those that run pytest, 3 for the rest."""
    if unit == VLLM:
        return 0
    if "mark.slow" in _source(root / unit):
        return 1
    return 2 if "pytest_plugin" in Path(unit).parts else 3


def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""
