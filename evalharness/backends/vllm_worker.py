"""What vLLM's own worker processes can do more: load another checkpoint into the running model, adapters added.

vLLM mixes the class into its worker (`worker_extension_cls`), so its methods can be called by name from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evalharness.backends.adapter_weights import merged_weights
from evalharness.checkpoint_adapter import read_adapter
from evalharness.checkpoint_weights import base_shapes

__all__ = ["WORKER_EXTENSION", "WeightSwapping"]

WORKER_EXTENSION = "evalharness.backends.vllm_worker.WeightSwapping"


class WeightSwapping:
    """Is mixed into vLLM's worker, whose `model_runner` and `vllm_config` it uses."""

    model_runner: Any
    vllm_config: Any

    def evalharness_swap(self, path: str, adapter_path: str | None) -> int:
        """Load a checkpoint of the same architecture, with its adapter if there is one; return the number of tensors read."""
        from vllm.model_executor.model_loader import get_model_loader

        model, model_config = self.model_runner.get_model(), self.vllm_config.model_config
        model_config.model = path
        counted = _Counted(get_model_loader(self.vllm_config.load_config).get_all_weights(model_config, model))
        weights: Iterable[tuple[str, Any]] = counted
        if adapter_path is not None:
            adapter = read_adapter(Path(adapter_path), base_shapes(Path(path)))
            weights = merged_weights(weights, adapter, model_config.dtype)
        self.model_runner.reload_weights(weights_iterator=weights)
        _pack_heads_again(model)
        return counted.num


class _Counted:
    def __init__(self, weights: Iterable[tuple[str, Any]]) -> None:
        self._weights = weights
        self.num = 0

    def __iter__(self) -> Any:
        for item in self._weights:
            self.num += 1
            yield item


def _pack_heads_again(model: Any) -> None:
    """Pack embeddings and output heads for the CPU's kernels once more.

    vLLM packs a layer's weight after loading it, but only a layer that weights were loaded for. An output head that shares
    the embedding's weight has none of its own in the checkpoint: it went on with the packed copy of the old one, and every
    logit after a swap was a mixture of two checkpoints. On a GPU nothing is packed.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(module, VocabParallelEmbedding) and isinstance(method, UnquantizedEmbeddingMethod):
            method.process_weights_after_loading(module)
