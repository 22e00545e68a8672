"""The transformers package, imported the only way that works beside a CPU torch, and the private parts of it that are used.

transformers looks for torchvision and torchaudio once, when it is imported; missing operators must be registered before. So every module
takes transformers from here. `tests/backends/hf/test_transformers_internals.py` fails if a release drops a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from evalharness.backends.torchvision_cpu import register_missing_operators

register_missing_operators()

import transformers  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

from evalharness.backends.template_sandbox import LimitedEnvironment  # noqa: E402

DynamicLayer: Any = transformers.cache_utils.DynamicLayer
"""Keys and values of a layer that keeps all of them."""

chat_template_utils.ImmutableSandboxedEnvironment = LimitedEnvironment  # a checkpoint's template might loop for ever, or take all memory

__all__ = [
    "DynamicLayer",
    "attending_with",
    "gguf_architectures",
    "grows_freely",
    "num_image_tokens",
    "takes_dynamic_cache",
    "transformers",
]


@contextmanager
def attending_with(attend: Callable[..., Any]) -> Iterator[None]:
    """Have sdpa attention computed by another function in here; it is given transformers' own as `otherwise`, and what that takes."""
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    functions["sdpa"] = partial(attend, otherwise=functions["sdpa"])
    try:
        yield
    finally:
        del functions["sdpa"]  # this one alone: behind it the library's stands


def num_image_tokens(processor: Any, sizes: Sequence[tuple[int, int]]) -> list[int] | None:
    """Return how many tokens images of these sizes (width, height) take; None where the processor cannot tell."""
    measure = getattr(processor, "_get_num_multimodal_tokens", None)
    if measure is None:
        return None
    return [int(count) for count in measure(image_sizes=[(height, width) for width, height in sizes])["num_image_tokens"]]


def takes_dynamic_cache(model: Any) -> bool:
    """Return whether transformers itself would give the model a `DynamicCache`."""
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    return supports is not None and bool(supports())


def grows_freely(layers: Sequence[Any]) -> bool:
    """Return whether all layers of a cache keep every key and value, without a window."""
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def gguf_architectures() -> frozenset[str]:
    """Return the families of GGUF files that transformers reads, without underscores."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    return frozenset(name.replace("_", "") for name in GGUF_SUPPORTED_ARCHITECTURES)  # llama.cpp says qwen2moe and gpt-oss
