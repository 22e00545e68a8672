"""What vLLM's own worker processes can do more: load another checkpoint into the running model, adapters added.

vLLM mixes the class into its worker (`worker_extension_cls`), so its methods can be called by name from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from evalharness.backends.adapter_weights import merged_weights
from evalharness.checkpoints.adapter import read_adapter, shapes_of
from evalharness.checkpoints.weights import base_shapes, read_head

__all__ = ["WORKER_EXTENSION", "WeightSwapping"]

WORKER_EXTENSION = "evalharness.backends.vllm.vllm_worker.WeightSwapping"


class WeightSwapping:
    """Is mixed into vLLM's worker, whose `model_runner` and `vllm_config` it uses."""

    model_runner: Any
    vllm_config: Any

    def evalharness_swap(self, path: str | None, adapter_path: str | None, given_path: str | None) -> int:
        """Load a checkpoint of the same architecture, with its adapter if there is one; return the number of tensors read.

        `given_path`: a safetensors file whose tensors stand for the checkpoint's of the same names, or, where `path` is None,
        are all there is.
        """
        model, model_config = self.model_runner.get_model(), self.vllm_config.model_config
        counted = _Counted(self._source(path, given_path))
        weights: Iterable[tuple[str, Any]] = counted
        if adapter_path is not None:
            shapes = base_shapes(Path(path)) if path is not None else shapes_of(read_head(Path(str(given_path))))
            weights = merged_weights(counted, read_adapter(Path(adapter_path), shapes), model_config.dtype)
        self.model_runner.reload_weights(weights_iterator=weights)
        _pack_heads_again(model)
        return counted.num

    def _source(self, path: str | None, given_path: str | None) -> Iterable[tuple[str, Any]]:
        from vllm.model_executor.model_loader import get_model_loader

        if path is None:
            return _given_over((), str(given_path))
        model_config = self.vllm_config.model_config
        model_config.model = path
        base = get_model_loader(self.vllm_config.load_config).get_all_weights(model_config, self.model_runner.get_model())
        return base if given_path is None else _given_over(base, given_path)


def _given_over(base: Iterable[tuple[str, Any]], given_path: str) -> Iterator[tuple[str, Any]]:
    """Yield the base's tensors, or those of the file that stand for them, then the file's others."""
    from safetensors import safe_open

    with safe_open(given_path, framework="pt") as file:
        left = dict.fromkeys(file.keys())
        for name, tensor in base:
            is_given = name in left
            left.pop(name, None)
            yield name, file.get_tensor(name) if is_given else tensor
        for name in left:
            yield name, file.get_tensor(name)


class _Counted:
    def __init__(self, weights: Iterable[tuple[str, Any]]) -> None:
        self._weights = weights
        self.num = 0

    def __iter__(self) -> Iterator[tuple[str, Any]]:
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
