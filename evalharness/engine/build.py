"""Builds an engine with a checkpoint loaded, from names and options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from evalharness.api.checks import check_instance, check_text
from evalharness.api.errors import ConfigError, ContractTypeError
from evalharness.api.options import ChatTemplateOptions, ModelLoadConfig, ServerOptions, VllmEngineOptions, VlmPreprocessOptions
from evalharness.backends import AUTO, known_backends, load_backend_class, unknown_backend
from evalharness.backends.base import Backend
from evalharness.backends.option_support import SHIPPED, LoadOptions
from evalharness.checkpoints.hub import located
from evalharness.engine.engine import Engine, warn
from evalharness.hardware.auto_backend import choose_backend


def build_backend(
    name: str,
    config: ModelLoadConfig,
    preprocess: VlmPreprocessOptions,
    vllm_options: VllmEngineOptions,
    server_options: ServerOptions | None = None,
) -> Backend:
    """Return a loaded backend by name; `ConfigError` for an unknown one, `CheckpointError` or `BackendError` if it cannot start.

    Its class gets `config` and `preprocess`, and by keyword those of `vllm_options`, `server_options` and `max_model_len` that its
    constructor names. The `max_model_len` of `vllm_options` applies to every backend.
    """
    backend_class = load_backend_class(name)
    config = config if name == "fake" else located(config, must_exist=name in SHIPPED)  # others may ask for models by any names
    options = {
        "vllm_options": vllm_options,
        "server_options": server_options or ServerOptions(),
        "max_model_len": vllm_options.max_model_len,
    }
    parameters = inspect.signature(backend_class).parameters
    backend = backend_class(config, preprocess, **{option: value for option, value in options.items() if option in parameters})
    if vllm_options.max_model_len is not None and not parameters.keys() & {"vllm_options", "max_model_len"}:
        _limit_context(backend, vllm_options.max_model_len)
    return backend


def _limit_context(backend: Backend, max_model_len: int) -> None:
    context = backend.max_model_len
    if context is not None and max_model_len > context:
        backend.close()
        raise ConfigError(
            f"max_model_len {max_model_len} is more than the checkpoint's context of {context} tokens; lower it or leave it out"
        )
    backend.max_model_len = max_model_len


def build_engine(
    backend: str,
    config: ModelLoadConfig,
    *,
    vllm_options: VllmEngineOptions | None = None,
    server_options: ServerOptions | None = None,
    chat_template: ChatTemplateOptions | None = None,
    preprocess: VlmPreprocessOptions | None = None,
    fallback_backend: str | None = None,
    unsupported_options: str = "refuse",
    on_notice: Callable[[str], None] | None = None,
) -> Engine:
    """Return an engine with one checkpoint loaded; `fallback_backend` is loaded only when it is needed.

    `backend` is one of `known_backends()`, or "auto" for the best one here (`hardware/auto_backend.py`); `Engine.chosen` then says why.
    """
    _check_arguments(backend, config)
    for name, value, kind in (
        ("vllm_options", vllm_options, VllmEngineOptions),
        ("server_options", server_options, ServerOptions),
        ("preprocess", preprocess, VlmPreprocessOptions),
        ("chat_template", chat_template, ChatTemplateOptions),
    ):
        check_instance(name, value, kind, optional=True)
    chosen = choose_backend(config) if backend == AUTO else None
    if chosen is not None:
        backend = chosen.backend
        fallback_backend = None if fallback_backend == backend else fallback_backend
    given = LoadOptions(
        config, preprocess or VlmPreprocessOptions(), vllm_options or VllmEngineOptions(), server_options or ServerOptions()
    )
    if fallback_backend is not None and fallback_backend not in known_backends():
        raise ConfigError(f"fallback backend {unknown_backend(fallback_backend)}")
    for notice in given.check(backend, fallback_backend):
        (on_notice or warn)(notice)
    fallback = None if fallback_backend is None else partial(_load, fallback_backend, given)
    primary = _load(backend, given)
    if primary.processor is None and not _leaves_images_alone(given.preprocess):
        (on_notice or warn)(f"preprocess.max_pixels, min_pixels and do_resize change nothing: {config.model_name_or_path} takes no images")
    engine = Engine(
        primary, fallback_backend=fallback, chat_template=chat_template, unsupported_options=unsupported_options, on_notice=on_notice
    )
    engine.chosen = None if chosen is None else chosen.why
    return engine


def _load(backend: str, given: LoadOptions) -> Backend:
    options = given.honoured_by(backend)
    return build_backend(backend, options.model, options.preprocess, options.vllm, options.server)


def _leaves_images_alone(preprocess: VlmPreprocessOptions) -> bool:
    """Return whether images are left as the checkpoint has them."""
    return (preprocess.max_pixels, preprocess.min_pixels, preprocess.do_resize) == (None, None, None)


def _check_arguments(backend: object, config: object) -> None:
    check_text("backend", backend)
    if not isinstance(config, ModelLoadConfig):
        if isinstance(config, (str, os.PathLike)):
            hint = f"; did you mean ModelLoadConfig({os.fspath(config)!r})?"
        else:
            hint = "; a model in memory is taken by build_engine_around" if hasattr(config, "forward") else ""
        raise ContractTypeError(f"config must be a ModelLoadConfig, got {type(config).__name__}{hint}")


def build_engine_around(
    model: Any,
    tokenizer: Any = None,
    processor: Any = None,
    *,
    chat_template: ChatTemplateOptions | None = None,
    unsupported_options: str = "refuse",
    on_notice: Callable[[str], None] | None = None,
) -> Engine:
    """Return an engine on a transformers model in memory, such as one in training, without copying or changing it.

    Pass its tokenizer, or the processor that holds it. Each step of an optimizer is a new `weight_version`.
    """
    from evalharness.backends.hf.backend import HfBackend

    return Engine(
        HfBackend.around(model, tokenizer, processor),
        chat_template=chat_template,
        unsupported_options=unsupported_options,
        on_notice=on_notice,
    )
