"""The fast tier, `pytest tests --fast`: all tests except those of real engines and browsers, slow ones, and those that start pytest.

A test is left out if it, or its module, has one of the markers below, or if it uses one of
`ENGINE_FIXTURES`. Nothing in the tier can import torch, not even a process that a test starts: see tests/no_torch/sitecustomize.py.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

LEFT_OUT = ("engine", "vllm", "browser", "gpu", "slow")
ENGINE_FIXTURES = frozenset(
    {"hf_engine", "hf_text_checkpoint", "max_text_checkpoint", "real_engine", "tiny_vlm_checkpoint", "torch_in_one_thread", "vllm_engine"}
)
"""All that have a real model are among these or made of them."""


def is_on() -> bool:
    """Return whether this process runs the fast tier."""
    return hasattr(sys.modules.get("sitecustomize"), "attempts")


_NO_TORCH = Path(__file__).parent / "no_torch"
_MODULE_MARK = re.compile(rf"^pytestmark = (?:\[\n(?:    .*\n)*?    |.*)pytest\.mark\.(?:{'|'.join(LEFT_OUT)})\b", re.MULTILINE)


class FastTier:
    """The plugin that `--fast` registers."""

    def __init__(self) -> None:
        self._attempts = _refuse_engines()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Pass over whole modules that are left out: they may import torch at their top."""
        if collection_path.suffix == ".py" and _MODULE_MARK.search(collection_path.read_text(encoding="utf-8")):
            return True
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests of the tier."""
        left_out = [item for item in items if _is_left_out(item)]
        items[:] = [item for item in items if item not in set(left_out)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Fail a test whose fixtures import an engine."""
        try:
            return (yield)
        finally:
            self._fail_if_an_engine_was_imported()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Fail a test that imports an engine."""
        try:
            return (yield)
        finally:
            self._fail_if_an_engine_was_imported()

    def _fail_if_an_engine_was_imported(self) -> None:
        """Fail whatever the code made of the refusal."""
        if self._attempts:
            names = ", ".join(dict.fromkeys(self._attempts))
            self._attempts.clear()
            pytest.fail(f"this test imports {names}: mark it with pytest.mark.engine, so that it leaves the fast tier", pytrace=False)


def _is_left_out(item: pytest.Item) -> bool:
    takes_engine = bool(ENGINE_FIXTURES.intersection(getattr(item, "fixturenames", ())))
    return takes_engine or any(item.get_closest_marker(name) for name in LEFT_OUT)


def _refuse_engines() -> list[str]:
    """Make torch impossible to import, here and in processes that start from now on; returns a list that grows with each attempt."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_NO_TORCH), os.environ.get("PYTHONPATH")]))
    module = sys.modules.get("sitecustomize")
    if not hasattr(module, "attempts"):
        sys.modules.pop("sitecustomize", None)  # another one, of the machine
        sys.path.insert(0, str(_NO_TORCH))
        module = importlib.import_module("sitecustomize")
        sys.path.remove(str(_NO_TORCH))
    return module.attempts
