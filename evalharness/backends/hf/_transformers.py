"""The transformers package, imported the only way that works beside a CPU torch.

transformers looks for torchvision and torchaudio once, when it is imported; missing operators must be registered before.
Both the hf and the vllm backend therefore take it from here.
"""

from __future__ import annotations

from evalharness.backends.torchvision_cpu import register_missing_operators

register_missing_operators()

import transformers  # noqa: E402

__all__ = ["transformers"]
