"""Which backend honours which option of how an engine is made. What is set elsewhere is refused, or announced as without effect.

Names are dotted paths, as in errors: `model.device` is `ModelLoadConfig.device`. Other packages' backends get all options and decide
themselves. What a backend cannot generate, such as log-probabilities, its `Capabilities` say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any

from evalharness.api.errors import UnsupportedOption
from evalharness.api.options import ModelLoadConfig, ServerOptions, VllmEngineOptions, VlmPreprocessOptions

SHIPPED = frozenset({"fake", "hf", "max", "openai", "vllm"})
_LOADING = frozenset({"hf", "max", "vllm"})
_PIXELS = frozenset({"hf", "vllm"})
HONOURED_BY: Mapping[str, frozenset[str]] = {
    "model.model_name_or_path": SHIPPED,
    "model.torch_dtype": _LOADING,
    "model.device": _LOADING,
    "model.device_map": frozenset({"hf"}),
    "model.attn_implementation": frozenset({"hf"}),
    "model.trust_remote_code": frozenset({"hf", "max", "openai", "vllm"}),
    "model.allow_pickle": frozenset({"hf", "vllm"}),
    "model.download": frozenset({"hf", "max", "openai", "vllm"}),
    "model.variant": frozenset({"hf", "openai", "vllm"}),
    "model.adapter_path": frozenset({"hf", "openai", "vllm"}),
    **dict.fromkeys(("preprocess.max_pixels", "preprocess.min_pixels", "preprocess.do_resize"), _PIXELS),
    **{f"vllm.{option.name}": frozenset({"vllm"}) for option in fields(VllmEngineOptions)},
    "vllm.max_model_len": SHIPPED,
    **{f"server.{option.name}": frozenset({"openai"}) for option in fields(ServerOptions)},
}
"""Options by the backends that honour them."""
_BY_HAND = "rows are padded by hand, with a mask, and nothing is ever truncated; only the engine's `tokenizer` has it"
WITHOUT_EFFECT: Mapping[str, str] = {
    "preprocess.padding_side": _BY_HAND,
    "preprocess.truncation_side": _BY_HAND,
    "preprocess.pad_token_fallback": _BY_HAND,
    "options.pad_token_id": "padding is masked, so its value never matters",
}
"""Options that change no answer of any backend, and why: they are announced."""
PERMISSIONS = frozenset({"model.trust_remote_code", "model.allow_pickle", "model.download", "vllm.trust_remote_code"})
"""Options that only allow something: where there is nothing to allow, that is announced."""
SCRIPTED = (
    *("temperature", "top_p", "repetition_penalty", "do_sample", "no_repeat_ngram_size", "seed", "use_cache"),
    "extra_generation_kwargs",
)
"""Generation options that the backend fake takes and records, but that change none of its answers, which are scripted."""


@dataclass(frozen=True)
class LoadOptions:
    """How an engine is made, all classes together; `check` what a backend honours before it gets them."""

    model: ModelLoadConfig
    preprocess: VlmPreprocessOptions
    vllm: VllmEngineOptions
    server: ServerOptions

    def check(self, backend: str, fallback: str | None = None) -> Iterator[str]:
        """Yield what has no effect; `UnsupportedOption` for an option that is set and that neither backend nor fallback honours."""
        for path, value in self._set():
            honoured = HONOURED_BY.get(path, frozenset())
            lacking = [name for name in (backend, fallback) if name in SHIPPED and name not in honoured]
            if not lacking:
                continue
            if path in WITHOUT_EFFECT:
                yield f"{path}={value!r} changes no answer: {WITHOUT_EFFECT[path]}"
            elif path in PERMISSIONS:
                yield from (f"{path} is not needed: backend {name!r} has nothing for it to allow" for name in lacking)
            elif len(lacking) == len({backend, fallback} - {None}):
                remedy = f"leave it out, or use backend {' or '.join(sorted(honoured))}"
                raise UnsupportedOption(f"{path}={value!r} cannot be honoured by backend {' or '.join(map(repr, lacking))}; {remedy}")
            elif path.partition(".")[0] in ("model", "preprocess"):  # the others have the name of their backend
                yield f"{path}={value!r} is honoured by one backend only: {lacking[0]!r} has nothing of it"

    def honoured_by(self, backend: str) -> LoadOptions:
        """Return the options that a backend honours; the others have their defaults."""
        if backend not in SHIPPED:
            return self
        groups: dict[str, dict[str, Any]] = {}
        for path, _ in self._set():
            if backend not in HONOURED_BY.get(path, ()) and path not in WITHOUT_EFFECT:
                group, _, name = path.partition(".")
                default = next(default_of(option) for option in fields(getattr(self, group)) if option.name == name)
                groups.setdefault(group, {})[name] = default
        return replace(self, **{group: replace(getattr(self, group), **values) for group, values in groups.items()})

    def _set(self) -> Iterator[tuple[str, Any]]:
        """Yield the dotted paths and values of all options that differ from their defaults."""
        for group in fields(self):
            values = getattr(self, group.name)
            for option in fields(values):
                if getattr(values, option.name) != default_of(option):
                    yield f"{group.name}.{option.name}", getattr(values, option.name)


def default_of(option: Field[Any]) -> Any:
    """Return a field's default; `MISSING` for one without."""
    return option.default if option.default_factory is MISSING else option.default_factory()
