"""The fast tier, `pytest tests --fast`: every test but those of real engines and browsers, and those that take long.

A test is left out by one of the markers below, which it has itself or through its module's `pytestmark`, or because it takes one of
`ENGINE_FIXTURES`. Nothing in the tier can import torch, not even a process that a test starts: see tests/no_torch/sitecustomize.py.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

LEFT_OUT = ("engine", "vllm", "browser", "gpu", "slow")
ENGINE_FIXTURES = frozenset(
    {"hf_engine", "hf_text_checkpoint", "max_text_checkpoint", "real_engine", "tiny_vlm_checkpoint", "torch_in_one_thread", "vllm_engine"}
)
"""All that have a real model are among these or made of them."""

_NO_TORCH = Path(__file__).parent / "no_torch"
_MODULE_MARK = re.compile(rf"^pytestmark = (?:\[\n(?:    .*\n)*?    |.*)pytest\.mark\.(?:{'|'.join(LEFT_OUT)})\b", re.MULTILINE)


def refuse_engines() -> None:
    """Make torch impossible to import, here and in processes that start from now on."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_NO_TORCH), os.environ.get("PYTHONPATH")]))
    if not _refuser():
        sys.path.insert(0, str(_NO_TORCH))
        sys.modules.pop("sitecustomize", None)  # another one, of the machine
        importlib.import_module("sitecustomize")
        sys.path.remove(str(_NO_TORCH))


def _refuser() -> ModuleType | None:
    module = sys.modules.get("sitecustomize")
    return module if module is not None and hasattr(module, "attempts") else None


def is_left_out(path: Path) -> bool:
    """Whether a whole module is: it is not imported, for it may import torch at its top."""
    return path.suffix == ".py" and _MODULE_MARK.search(path.read_text(encoding="utf-8")) is not None


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier."""
    kept, left_out = [], []
    for item in items:
        needs_engine = bool(ENGINE_FIXTURES.intersection(getattr(item, "fixturenames", ())))
        (left_out if needs_engine or any(map(item.get_closest_marker, LEFT_OUT)) else kept).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def fail_if_an_engine_was_imported() -> None:
    """Fail the test that tried to, whatever its code made of the refusal."""
    refuser = _refuser()
    if refuser is not None and refuser.attempts:
        names = ", ".join(dict.fromkeys(refuser.attempts))
        refuser.attempts.clear()
        pytest.fail(f"this test imports {names}: mark it with pytest.mark.engine, so that it leaves the fast tier", pytrace=False)
