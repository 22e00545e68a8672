"""What `hf/_transformers.py` uses of transformers' private parts is there. Run: pytest tests/backends/hf/test_transformers_internals.py"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

import pytest

pytestmark = pytest.mark.engine

PARTS = [
    ("transformers.cache_utils", "DynamicLayer"),
    ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    ("transformers.modeling_gguf_pytorch_utils", "GGUF_SUPPORTED_ARCHITECTURES"),
    ("transformers.generation.utils", "GenerationMixin._supports_default_dynamic_cache"),
    ("transformers.models.qwen3_vl.processing_qwen3_vl", "Qwen3VLProcessor._get_num_multimodal_tokens"),
    ("transformers.quantizers", "AutoHfQuantizer.supports_quant_method"),
    ("transformers.utils.chat_template_utils", "ImmutableSandboxedEnvironment"),
    ("transformers.utils.import_utils", "is_torchaudio_available.cache_clear"),
]


@pytest.mark.parametrize(("module", "part"), PARTS, ids=[part for _, part in PARTS])
def test_a_part_that_the_harness_uses_is_there(module: str, part: str) -> None:
    from evalharness.backends.hf import _transformers  # noqa: F401  # transformers, imported as the backends do

    value: Any = importlib.import_module(module)
    for name in part.split("."):
        value = getattr(value, name, None)
        assert value is not None, f"transformers {version('transformers')} has no {module}.{part}: mend backends/hf/_transformers.py"


def test_transformers_renders_chat_templates_with_our_limits() -> None:
    from evalharness.backends.hf import _transformers  # noqa: F401  # transformers, imported as the backends do
    from evalharness.backends.template_sandbox import LimitedEnvironment

    utils: Any = importlib.import_module("transformers.utils.chat_template_utils")
    assert isinstance(utils._compile_jinja_template("{{ messages }}").environment, LimitedEnvironment)
