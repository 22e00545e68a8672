"""The weights of a running vLLM: swaps, reloads, adapters, a trainer's tensors, sleep.

vLLM loads whole models only: if some weights of a layer are loaded anew, its others become undefined. So every change reads all of them:
the checkpoint's folder, over it the tensors that a trainer gave, in a file of our own, and then the adapter is added.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evalharness.api.errors import BackendError, CapabilityError, CheckpointError
from evalharness.api.options import ModelLoadConfig
from evalharness.api.temporary import OwnFolder
from evalharness.backends.base import WeightReport
from evalharness.backends.loaded_weights import LoadedWeights, TakeCompanions, WeightSource, merged_weights, pair_tensors, refuse_unmatched
from evalharness.backends.vllm.drafts import attach
from evalharness.backends.vllm.engine import VllmEngine
from evalharness.checkpoints.adapter import Adapter, read_adapter, shapes_of
from evalharness.checkpoints.architecture import LoadedFolder, loading_difference
from evalharness.checkpoints.weights import base_shapes, read_head

_SHARED_MEMORY = Path("/dev/shm")
_HANDLES = Path("/proc/self/fd")
_PREFIX = "evalharness-weights-"
_SPARE = 2  # times the tensors' size must be free in shared memory, which other programs need as well
_WRITING_S = 3600.0  # no file takes so long to be written


def remove_abandoned_files() -> None:
    """Free the shared memory of files whose process was killed while it wrote them."""
    for folder in _SHARED_MEMORY.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _WRITING_S:
                shutil.rmtree(folder, ignore_errors=True)


class VllmWeights(LoadedWeights):
    """The weights in a running vLLM."""

    def __init__(self, engine: VllmEngine, source: WeightSource, on_load: TakeCompanions, device_type: str) -> None:
        super().__init__(source, on_load)
        self._engine = engine
        self._given: _GivenFile | None = None
        self._asleep: set[str] = set()
        if not engine.arguments.get("enable_sleep_mode"):
            self.changes -= {"sleep"}
            on_cpu = "vLLM's sleep mode gives a GPU's memory back, and vLLM runs on 'cpu' here"
            elsewhere = "start vLLM with its sleep mode, VllmEngineOptions(extra=(('enable_sleep_mode', True),))"
            self.why_not = {"sleep": on_cpu if device_type == "cpu" else elsewhere}

    def adapter_facts(self) -> Mapping[str, Any] | None:
        """Return plain JSON facts about the adapter in force, None where there is none."""
        facts = super().adapter_facts()
        return {**facts, "merged_into": self._engine.arguments["dtype"]} if facts is not None else None

    def require_awake(self, *tags: str) -> None:
        """Raise `CapabilityError` while these sleep, by default all."""
        asleep = sorted(self._asleep.intersection(tags or ("kv_cache", "weights")))
        if asleep:
            raise CapabilityError(f"backend 'vllm' sleeps ({', '.join(asleep)}); wake the engine first (engine.weights.wake())")

    def require_changeable(self, *, whole: bool) -> None:
        """Raise unless the engine is awake, whole and idle, and its weights are not quantized."""
        self.require_awake("weights")
        if self._engine.broken is not None:
            raise BackendError(f"the vLLM engine cannot be used: {self._engine.broken}")
        if self._engine.is_generating:
            raise BackendError("this engine still generates; finish or close the iterator before its weights change")
        quantization = self._engine.config.model_config.quantization
        if quantization is not None:
            raise CapabilityError(f"the loaded weights are quantized ({quantization}); others cannot be put in their place, start anew")

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why this checkpoint cannot take the place of the loaded one, None where `swap` will do."""
        self.require_awake("weights")
        if self._engine.broken is not None:
            return f"the engine is broken: {self._engine.broken}"
        if self._engine.is_generating:
            return "the engine still generates"
        if self._engine.config.model_config.quantization is not None:
            return f"the loaded weights are quantized ({self._engine.config.model_config.quantization})"
        return self._why_not_load(config)

    def _why_not_load(self, config: ModelLoadConfig) -> str | None:
        return loading_difference(self.source.folder, Path(config.model_name_or_path))

    def _load(self, config: ModelLoadConfig) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as at the start
            return super()._load(config)

    def _write_checkpoint(self, source: WeightSource) -> int:
        adapter = source.adapter
        refuse_adapted_heads(source.folder, adapter)
        num_loaded = self._engine.swap(str(source.folder.path), str(adapter.path) if adapter is not None else None, None)
        self.forget_given()
        return num_loaded

    def _write_adapter(self, adapter: Adapter | None) -> int:
        refuse_adapted_heads(self.source.folder, adapter)
        return self._read_again(self._given, adapter)

    def _write_tensors(self, tensors: Mapping[str, Any], *, strict: bool) -> WeightReport:
        """Load a trainer's tensors through a file of our own: the engine's processes read them from there."""
        shapes = self.source.folder.weight_shapes()
        given = pair_tensors(tensors, shapes, lambda name: name)
        missing = tuple(sorted(set(shapes) - set(given.tensors)))
        if strict:
            refuse_unmatched(given.not_matched, missing)
        _refuse_parted_heads(self.source.folder, given.tensors)
        file = _GivenFile(given.tensors, self._given)
        try:
            self._read_again(file, None)
        except BaseException:
            file.remove()
            raise
        self.forget_given()
        self._given = file
        return WeightReport("tensors", len(given.tensors), given.not_matched, missing, given.tied)

    def _read_again(self, given: _GivenFile | None, adapter: Adapter | None) -> int:
        """Reload the checkpoint, over it these tensors of a trainer's, with this adapter; return the number of tensors."""
        reads_base = given is None or not given.names >= set(self.source.folder.weight_shapes())
        if reads_base and self.source.folder.has_changed():
            raise CheckpointError(
                f"{self.source.folder.path} has changed since it was loaded, or is gone, and the base is read again for this; "
                "load what is there now with engine.weights.reload, or give all weights to sync_from_state_dict"
            )
        return self._engine.swap(
            str(self.source.folder.path) if reads_base else None,
            str(adapter.path) if adapter is not None else None,
            given.path if given is not None else None,
        )

    def forget_given(self) -> None:
        """Remove the file of a trainer's tensors; may be called twice."""
        if self._given is not None:
            self._given.remove()
            self._given = None

    def sleep(self) -> None:
        """Have vLLM move the weights into the machine's memory and give up its keys and values."""
        if not self._asleep:
            self.require_changeable(whole=False)
            self._engine.sleep()
            self._asleep = {"kv_cache", "weights"}

    def wake(self, tags: Sequence[str] | None) -> None:
        """Have vLLM take memory again for the weights, which come back, and for keys and values, which begin empty."""
        wanted = sorted(self._asleep.intersection(tags if tags is not None else self._asleep))
        if wanted:
            self._engine.wake(wanted)
            self._asleep -= set(wanted)


def refuse_adapted_heads(folder: LoadedFolder, adapter: Adapter | None) -> None:
    """Raise `CheckpointError` for an adapter of an embedding or a head that vLLM may have tied, as their numbers were equal."""
    adapted = {*(weight.base_name for weight in adapter.weights), *adapter.replaced} if adapter is not None else set()
    if name := next(iter(sorted(folder.heads & adapted)), None):
        raise CheckpointError(
            f"the adapter changes {name}; config.json of {folder.path} ties {' and '.join(sorted(folder.heads))}, and its files hold both: "
            f"{_SAY_WHICH}"
        )


def _refuse_parted_heads(folder: LoadedFolder, tensors: Mapping[str, Any]) -> None:
    """Raise `CapabilityError` for values that such an embedding and head do not share."""
    import torch

    given = [tensors[name] for name in sorted(folder.heads) if name in tensors]
    if given and (len(given) < len(folder.heads) or not all(torch.equal(given[0], other) for other in given[1:])):
        raise CapabilityError(
            f"config.json of {folder.path} ties {' and '.join(sorted(folder.heads))}, and its files hold both: give equal values, or "
            f"{_SAY_WHICH}"
        )


_SAY_WHICH = "say in config.json whether they are one (tie_word_embeddings) and start anew, or take backend 'hf'"


class _GivenFile:
    """A trainer's tensors in a file, by the checkpoint's names, over those that were given before. `names`: all that it holds.

    The file has no name of its own any more where the system allows that: the engine's processes read it through this process's handle,
    and it goes with this object, or with the process, however that ends.
    """

    def __init__(self, tensors: Mapping[str, Any], before: _GivenFile | None) -> None:
        from safetensors.torch import load_file, save_file

        whole = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
        if before is not None and not before.names <= set(whole):
            whole = {**load_file(before.path), **whole}
        self.names: set[str] = set(whole)
        self._folder = OwnFolder("weights", _room_for(whole.values()))
        self._file: Any = None
        try:
            self.path: str = str(self._folder.path / "given.safetensors")
            save_file(whole, self.path)
            if _HANDLES.is_dir():
                self._file = open(self.path, "rb")  # noqa: SIM115 (closed by `remove`)
                self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
                self._folder.remove()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Give the memory or the disk's space back; may be called twice."""
        if self._file is not None:
            self._file.close()
        self._folder.remove()


def _room_for(tensors: Any) -> Path | None:
    """Return shared memory where there is plenty, so that nothing waits for a disk; None is the usual temporary folder."""
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    try:
        return _SHARED_MEMORY if shutil.disk_usage(_SHARED_MEMORY).free > _SPARE * num_bytes else None
    except OSError:
        return None


WORKER_EXTENSION = "evalharness.backends.vllm.weights.WeightSwapping"


class _Worker(Protocol):
    """What is used of vLLM's own worker, which `WeightSwapping` is mixed into."""

    model_runner: Any
    vllm_config: Any


class WeightSwapping:
    """Methods for vLLM's worker; vLLM mixes them in, by the name in `WORKER_EXTENSION`."""

    def evalharness_attach_drafts(self: _Worker) -> None:
        """Let the proposer of drafts read the requests; before any request is added."""
        if hasattr(self.model_runner, "drafter"):  # the last stage of a pipeline has it
            attach(self.model_runner)

    def evalharness_draft_counts(self: _Worker) -> dict[str, Any]:
        """Return what has become of drafts since the last call."""
        drafter = getattr(self.model_runner, "drafter", None)
        return drafter.take_counts() if drafter is not None else {}

    def evalharness_swap(self: _Worker, path: str | None, adapter_path: str | None, given_path: str | None) -> int:
        """Load a checkpoint of the same architecture, with its adapter if there is one; return the number of tensors read.

        `given_path`: a safetensors file whose tensors stand for the checkpoint's of the same names, or, where `path` is None,
        are all there is.
        """
        num_read = 0

        def counted() -> Iterator[tuple[str, Any]]:
            nonlocal num_read
            for weight in _source(self, path, given_path):
                num_read += 1
                yield weight

        weights = counted()
        if adapter_path is not None:
            shapes = base_shapes(Path(path)) if path is not None else shapes_of(read_head(Path(str(given_path))))
            weights = merged_weights(weights, read_adapter(Path(adapter_path), shapes), self.vllm_config.model_config.dtype)
        self.model_runner.reload_weights(weights_iterator=weights)
        _pack_heads_again(self.model_runner.get_model())
        return num_read


def _source(worker: _Worker, path: str | None, given_path: str | None) -> Iterable[tuple[str, Any]]:
    from vllm.model_executor.model_loader import get_model_loader

    if path is None:
        return _given_over((), str(given_path))
    model_config = worker.vllm_config.model_config
    model_config.model = path
    base = get_model_loader(worker.vllm_config.load_config).get_all_weights(model_config, worker.model_runner.get_model())
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
