"""Opens an engine as trainers ask for one: by their names, with every option by its own keyword, or around a model in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from evalharness.api.checks import shown
from evalharness.api.errors import ConfigError, ContractTypeError, did_you_mean
from evalharness.api.options import ModelLoadConfig, ServerOptions, VllmEngineOptions
from evalharness.backends import AUTO, known_backends
from evalharness.config.options import ENGINES, EngineMeaning
from evalharness.engine.build import build_engine, build_engine_around
from evalharness.engine.engine import Engine


def _names(options: type, *without: str) -> frozenset[str]:
    return frozenset(field.name for field in fields(options)) - set(without)


_LOADING = _names(ModelLoadConfig, "model_name_or_path", "torch_dtype") | {"dtype"}
_VLLM = _names(VllmEngineOptions, "dtype", "trust_remote_code", "extra", "max_model_len")
_SERVER = _names(ServerOptions, "server", "base_url")
_ENGINE = frozenset({"chat_template", "unsupported_options", "on_notice"})
_BUILDING = _ENGINE | {"preprocess", "fallback_backend"}
_COMPANIONS = frozenset({"tokenizer", "processor"})
_KNOWN = _LOADING | _VLLM | _SERVER | _BUILDING | _COMPANIONS | {"max_model_len", "url"}
_OTHER_NAMES = {"base_url": "url", "torch_dtype": "dtype", "server": "the kind of server as the engine's name"}


def open_engine(name: str, model: Any, *, url: str | None = None, **options: Any) -> Engine:
    """Return an engine by the name that trainers give it, or by a backend's.

    `vllm` and `max` are servers where there is a `url`, and run in this process without; `sglang`, `trtllm`, `mlx` and `openai` are
    servers, by default on this machine at their own port. `model`: the folder of a checkpoint, or its name in the hub's cache; for
    `pytorch` also a model of transformers in memory, which the engine then shares with its owner (`tokenizer`, `processor`: its
    companions, by default those of the folder that it was loaded from).

    `options` are the fields of `ModelLoadConfig` (`dtype`, `device`, `adapter_path`…), `VllmEngineOptions` (`tensor_parallel_size`…, for
    `vllm` any argument of its engine) and `ServerOptions` (`concurrency`…), and those of `build_engine`. Raises `ConfigError` for a name
    or an option that is unknown, or that the engine cannot honour.
    """
    known = sorted({*ENGINES, *known_backends()})
    if name not in known:
        raise ConfigError(f"engine {name!r} is unknown{did_you_mean(name, known) or '.'} Known: {', '.join(known)}.")
    meant = ENGINES.get(name, EngineMeaning(backend=name))
    is_server = meant.server is not None and (url is not None or meant.backend is None)
    if url is not None and not is_server:
        raise ConfigError(f"engine {name!r} runs in this process, so nothing is asked at {url}; leave url out or name a kind of server")
    backend = "openai" if is_server else str(meant.backend)
    if backend == AUTO and any(options[option] is not None for option in _VLLM & options.keys()):
        backend = "vllm"  # as on the command line: only it honours them
    _check(name, backend, options)
    options = {option: value for option, value in options.items() if value is not None}  # None: as if it were not given
    if not isinstance(model, (str, os.PathLike)):
        return _around(name, backend, model, options)
    if companions := sorted(_COMPANIONS & set(options)):
        raise ConfigError(f"{companions[0]} belongs to a model in memory; {model} has its own")
    loading = _pick(options, _LOADING)
    config = ModelLoadConfig(os.fspath(model), torch_dtype=loading.pop("dtype", None), **loading)
    extra = tuple((option, value) for option, value in options.items() if option not in _KNOWN)
    vllm = VllmEngineOptions(**_pick(options, _VLLM | {"max_model_len"}), extra=extra)
    kind: dict[str, Any] = {"server": meant.server, "base_url": url} if is_server else {}
    server = ServerOptions(**kind, **_pick(options, _SERVER))
    return build_engine(backend, config, vllm_options=vllm, server_options=server, **_pick(options, _BUILDING))


def _pick(options: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}


def _check(name: str, backend: str, options: Mapping[str, Any]) -> None:
    for option in options:
        if option not in _KNOWN and (backend != "vllm" or option in _OTHER_NAMES):
            other = _OTHER_NAMES.get(option)
            hint = f"; write {other}." if other is not None else did_you_mean(option, _KNOWN) or "."
            raise ConfigError(f"engine {name!r} has no option {option!r}{hint} Known: {', '.join(sorted(_KNOWN))}.")


_HOW_TO_SEND = {
    "openai": ", and send its LoRA adapter with reload_weights or sync_from_state_dict",
    "vllm": ", and send the model's weights with sync_from_state_dict(model.state_dict())",
}


def _around(name: str, backend: str, model: Any, options: Mapping[str, Any]) -> Engine:
    kind = type(model).__name__
    if not hasattr(model, "forward"):
        raise ContractTypeError(
            f"model must be the folder of a checkpoint or its name on the hub, for 'pytorch' also a model of transformers, "
            f"got {shown(model)} ({kind})"
        )
    if backend != "hf":
        raise ConfigError(
            f"engine {name!r} loads its own checkpoint, but got a {kind}: give the folder that training starts from"
            f"{_HOW_TO_SEND.get(backend, '')}; only 'pytorch' shares a model in memory"
        )
    if meaningless := sorted(options.keys() - _ENGINE - _COMPANIONS):
        raise ConfigError(f"{meaningless[0]} says how a checkpoint is loaded, and the {kind} is in memory already; leave it out")
    return build_engine_around(model, **options)
