"""The code of docs/other_interfaces.md runs. Run: pytest tests/docs/test_other_interfaces.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (Path(__file__).parents[2] / "docs" / "other_interfaces.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_its_code_runs(number: int, tiny_vlm_checkpoint: Path) -> None:
    from tests.backends.hf_models import one_thread

    names: dict[str, Any] = {"CHECKPOINT": str(tiny_vlm_checkpoint)}
    with one_thread():
        exec(BLOCKS[number], names)
    assert len(names.get("groups", [[0] * 4])[0]) == 4
    assert names.get("loss", 1.0) > 0


def test_it_has_code() -> None:
    assert len(BLOCKS) == 2
