"""The weights of a running vLLM: swaps, reloads, adapters, a trainer's tensors, sleep.

vLLM loads whole models only: if some weights of a layer are loaded anew, its others become undefined. So every change reads all of them:
the checkpoint's folder, over it the tensors that a trainer gave, in a file of our own, and then the adapter is added.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from evalharness.api.errors import BackendError, CapabilityError, CheckpointError
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.base import LiveChange, WeightReport
from evalharness.backends.checkpoint_reading import end_of_sequence_ids, load_tokenizer_and_processor
from evalharness.backends.vllm.engine import VllmEngine
from evalharness.backends.weight_sources import (
    adapter_at,
    check_checkpoint,
    given_adapter,
    holds_adapter,
    merged_weights,
    pair_tensors,
    refuse_unmatched,
)
from evalharness.checkpoints.adapter import Adapter, read_adapter, shapes_of
from evalharness.checkpoints.architecture import LoadedFolder, loading_difference
from evalharness.checkpoints.weights import base_shapes, read_head

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "evalharness-weights-"
_SPARE = 2  # times the tensors' size must be free in shared memory, which other programs need as well


def remove_abandoned_files() -> None:
    """Free the shared memory that trainers' tensors of killed processes still take."""
    remove_abandoned(_PREFIX, _SHARED_MEMORY)


class VllmWeights:
    """Weights in a running vLLM, and the known facts about their source; `config` names the loaded checkpoint.

    `on_load` is called with the tokenizer, the processor and the EOS ids of each checkpoint that has taken the place of the first.
    """

    def __init__(
        self,
        engine: VllmEngine,
        config: ModelLoadConfig,
        preprocess: VlmPreprocessOptions,
        folder: LoadedFolder,
        adapter: Adapter | None,
        on_load: Callable[[Any, Any, tuple[int, ...]], None],
        device_type: str,
    ) -> None:
        self._engine, self.config, self._preprocess = engine, config, preprocess
        self._folder, self._adapter, self._adapter_source = folder, adapter, config.adapter_path
        self._on_load = weakref.WeakMethod(on_load)  # a backend that nobody holds any more ends its engine at once
        self._given: _GivenFile | None = None
        self._asleep: set[str] = set()
        self.changes: frozenset[LiveChange] = frozenset({"checkpoint", "adapter", "tensors"})
        self.why_not: Mapping[LiveChange, str] = {}
        if engine.arguments.get("enable_sleep_mode"):
            self.changes |= {"sleep"}
        elif device_type == "cpu":
            self.why_not = {"sleep": "vLLM's sleep mode gives a GPU's memory back, and vLLM runs on 'cpu' here"}
        else:
            self.why_not = {"sleep": "start vLLM with its sleep mode, VllmEngineOptions(extra=(('enable_sleep_mode', True),))"}

    def adapter_facts(self) -> Mapping[str, Any] | None:
        """Return plain JSON facts about the adapter in force, None where there is none."""
        if self._adapter is None:
            return None
        return {**self._adapter.to_json(), "path": self._adapter_source, "merged_into": self._engine.arguments["dtype"]}

    def require_awake(self, *tags: str) -> None:
        """Raise `CapabilityError` while these sleep, by default all."""
        asleep = sorted(self._asleep.intersection(tags or ("kv_cache", "weights")))
        if asleep:
            raise CapabilityError(f"backend 'vllm' sleeps ({', '.join(asleep)}); wake the engine first (engine.weights.wake())")

    def _require_changeable(self) -> None:
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
        return loading_difference(self._folder, Path(config.model_name_or_path))

    def swap(self, config: ModelLoadConfig) -> None:
        """Load another checkpoint's weights into the running engine; chat template and EOS ids are read anew."""
        problem = self.why_not_swap(config)
        if problem is not None:
            raise BackendError(f"{config.model_name_or_path} cannot take the place of the loaded checkpoint: {problem}")
        self._load(config)

    def reload(self, path: str, adapter_path: str | None) -> WeightReport:
        """Read a checkpoint's folder anew, whatever was loaded from it before."""
        self._require_changeable()
        check_checkpoint(path, self._folder, functools.partial(loading_difference, self._folder))
        num_loaded = self._load(replace(self.config, model_name_or_path=path, adapter_path=adapter_path))
        return WeightReport(path, num_loaded, adapter=self.adapter_facts())

    def _load(self, config: ModelLoadConfig) -> int:
        """Load base and adapter; whatever can be refused is refused before anything is touched. Return the number of tensors."""
        folder = LoadedFolder.read(Path(config.model_name_or_path))
        adapter = read_adapter(Path(config.adapter_path), folder.weight_shapes()) if config.adapter_path is not None else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as at the start
            tokenizer, processor = load_tokenizer_and_processor(config, self._preprocess)
            eos_token_ids = end_of_sequence_ids(config.model_name_or_path, tokenizer)
        num_loaded = self._engine.swap(str(folder.path), config.adapter_path, None)
        self.forget_given()
        self.config, self._folder, self._adapter, self._adapter_source = config, folder, adapter, config.adapter_path
        on_load = self._on_load()
        assert on_load is not None  # weights are reached through their backend
        on_load(tokenizer, processor, eos_token_ids)
        return num_loaded

    def load_adapter(self, path: str) -> WeightReport:
        """Add an adapter to the base that is loaded, which is read again for it."""
        self._require_changeable()
        adapter = adapter_at(path, self._folder.weight_shapes())
        self._put(self._given, adapter, path)
        return WeightReport(path, adapter.num_tensors, adapter=self.adapter_facts())

    def unload_adapter(self) -> WeightReport:
        """Load the base without the adapter."""
        self._require_changeable()
        if self._adapter is None:
            raise CapabilityError("there is no adapter to take off")
        return WeightReport(self.config.model_name_or_path, self._put(self._given, None, None))

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Load a trainer's tensors, or its adapter, through files of our own: the engine's processes read them from there."""
        is_adapter = holds_adapter(tensors)
        self._require_changeable()
        shapes = self._folder.weight_shapes()
        if is_adapter:
            with given_adapter(tensors, adapter_config, self._adapter, shapes, strict=strict) as (adapter, left):
                self._put(self._given, adapter, "tensors")
            return WeightReport("tensors", adapter.num_tensors, not_matched=left, adapter=self.adapter_facts())
        if self._adapter is not None:
            raise CapabilityError("an adapter is loaded, which would be added to these weights as well; call unload_adapter() first")
        given = pair_tensors(tensors, shapes, lambda name: name)
        missing = tuple(sorted(set(shapes) - set(given.tensors)))
        if strict:
            refuse_unmatched(given.not_matched, missing)
        file = _GivenFile(given.tensors, self._given)
        try:
            self._put(file, None, None)
        except BaseException:
            file.remove()
            raise
        return WeightReport("tensors", len(given.tensors), given.not_matched, missing, given.tied)

    def _put(self, given: _GivenFile | None, adapter: Adapter | None, source: str | None) -> int:
        """Reload the checkpoint with other tensors of a trainer's, or another adapter; return the number of tensors."""
        reads_base = given is None or not given.names >= set(self._folder.weight_shapes())
        if reads_base and self._folder.has_changed():
            raise CheckpointError(
                f"{self._folder.path} has changed since it was loaded, or is gone, and the base is read again for this; "
                "load what is there now with engine.weights.reload, or give all weights to sync_from_state_dict"
            )
        num_loaded = self._engine.swap(
            str(self._folder.path) if reads_base else None,
            str(adapter.path) if adapter is not None else None,
            given.path if given is not None else None,
        )
        if given is not self._given:
            self.forget_given()
            self._given = given
        self._adapter, self._adapter_source = adapter, source
        return num_loaded

    def forget_given(self) -> None:
        """Remove the file of a trainer's tensors; may be called twice."""
        if self._given is not None:
            self._given.remove()
            self._given = None

    def sleep(self) -> None:
        """Have vLLM move the weights into the machine's memory and give up its keys and values."""
        if not self._asleep:
            self._require_changeable()
            self._engine.sleep()
            self._asleep = {"kv_cache", "weights"}

    def wake(self, tags: Sequence[str] | None) -> None:
        """Have vLLM take memory again for the weights, which come back, and for keys and values, which begin empty."""
        wanted = sorted(self._asleep.intersection(tags if tags is not None else self._asleep))
        if wanted:
            self._engine.wake(wanted)
            self._asleep -= set(wanted)


class _GivenFile:
    """A trainer's tensors in a file, by the checkpoint's names, over those that were given before. `names`: all that it holds."""

    def __init__(self, tensors: Mapping[str, Any], before: _GivenFile | None) -> None:
        from safetensors.torch import load_file, save_file

        whole = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
        if before is not None and not before.names <= set(whole):
            whole = {**load_file(before.path), **whole}
        self.names: set[str] = set(whole)
        # A script that ends without closing its engine would leave gigabytes in shared memory, until the machine starts anew.
        folder = HeldFolder(_PREFIX, _room_for(whole.values()))
        self.remove = folder.remove
        self.path: str = str(folder.path / "given.safetensors")
        self._folder = folder
        try:
            save_file(whole, self.path)
        except BaseException:
            self.remove()
            raise


# Shared memory is not emptied until the machine restarts, so its folders must go with their process, or after it. Each holds a file that
# its process, and whatever that has forked, has locked. The system gives the lock back however a process ends, SIGKILL too; so a folder
# whose lock can be had belongs to nobody. Locks tell this on one machine only.
_LOCK = "held"
_PREPARING = "new-"


class HeldFolder:
    """A new folder `<prefix>…`, readable for its owner alone. It goes with `remove()`, this object, or the process."""

    def __init__(self, prefix: str, parent: Path | None) -> None:
        # Under another name until it is locked, so that it is not taken for an abandoned one.
        made = Path(tempfile.mkdtemp(prefix=_PREPARING + prefix, dir=parent))
        try:
            lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.path = made.with_name(made.name.removeprefix(_PREPARING))
                made.rename(self.path)
            except BaseException:
                os.close(lock)
                raise
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        self.remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has this object, too, and the folder is not its own
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove this user's folders `<prefix>…` in `parent` whose processes are gone. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if not path.is_symlink() and path.stat().st_uid == os.getuid():
                    _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


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
    """A method for vLLM's worker; vLLM mixes it in, by the name in `WORKER_EXTENSION`."""

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
