"""What several folders of tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random Qwen3-VL of the fixtures."""
    from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

    return make_tiny_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_checkpoint: Path) -> Any:
    """The tokenizer of the tiny checkpoint: byte-level, 652 tokens."""
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_checkpoint)
