"""Checkpoints and engines that the backends' tests share; a vLLM engine takes half a minute to start, so there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backends.vllm_models import Reference, make_checkpoint

if TYPE_CHECKING:
    from evalharness.backends.vllm import VllmBackend


@pytest.fixture(scope="session")
def tiny_vlm_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3-VL whose generation_config is full of traps."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny-vlm")


@pytest.fixture(scope="session")
def vllm_vlm_backend(tiny_vlm_checkpoint: Path) -> Iterator[VllmBackend]:
    """A running engine with default options on the tiny Qwen3-VL; takes text prompts too."""
    from evalharness.backends.vllm import VllmBackend
    from evalharness.contracts import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions

    backend = VllmBackend(ModelLoadConfig(str(tiny_vlm_checkpoint)), VlmPreprocessOptions(), VllmEngineOptions())
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def reference(tiny_vlm_checkpoint: Path) -> Reference:
    """Plain transformers on the tiny Qwen3-VL."""
    return Reference(tiny_vlm_checkpoint)
