"""Optional behaviour at generation time, given explicitly and checked before anything runs.

A plugin is any object; what it lacks is read as: its class's name, every backend, both request types, no hooks. Plugins
change where generation ends, which tokens it may choose, or the final text. They never parse and are never implicit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from evalharness.errors import CapabilityError

__all__ = ["GenerationPlugin", "RequestType", "normalise_plugins", "postprocess_text", "preflight"]

RequestType: TypeAlias = Literal["text", "vlm"]


@dataclass(frozen=True)
class GenerationPlugin:
    """A plugin with every attribute filled in; `backends` and `request_types` None means all of them."""

    plugin: Any
    name: str
    backends: frozenset[str] | None
    request_types: frozenset[str] | None
    uses_hf_stopping_criteria: bool
    uses_hf_logits_processor: bool

    @property
    def uses_hf_hooks(self) -> bool:
        """Whether the plugin needs transformers' generate loop."""
        return self.uses_hf_stopping_criteria or self.uses_hf_logits_processor

    def hf_stopping_criteria(self, prompt_lengths: Sequence[int]) -> list[Any]:
        """Return stopping criteria; `row[prompt_length:]` is exactly the new tokens of that row."""
        return list(self.plugin.hf_stopping_criteria(list(prompt_lengths))) if self.uses_hf_stopping_criteria else []

    def hf_logits_processor(self, prompt_lengths: Sequence[int]) -> list[Any]:
        """Return logits processors; `row[prompt_length:]` is exactly the new tokens of that row."""
        return list(self.plugin.hf_logits_processor(list(prompt_lengths))) if self.uses_hf_logits_processor else []


def normalise_plugins(plugins: Iterable[Any]) -> tuple[GenerationPlugin, ...]:
    """Return the plugins with their missing attributes filled in."""
    return tuple(_normalise(plugin) for plugin in plugins)


def _normalise(plugin: Any) -> GenerationPlugin:
    if isinstance(plugin, GenerationPlugin):
        return plugin
    return GenerationPlugin(
        plugin=plugin,
        name=str(getattr(plugin, "name", type(plugin).__name__)),
        backends=_names(plugin, "backends"),
        request_types=_names(plugin, "request_types"),
        uses_hf_stopping_criteria=bool(getattr(plugin, "uses_hf_stopping_criteria", False)),
        uses_hf_logits_processor=bool(getattr(plugin, "uses_hf_logits_processor", False)),
    )


def _names(plugin: Any, attribute: str) -> frozenset[str] | None:
    value = getattr(plugin, attribute, None)
    if value is None:
        return None
    return frozenset([value]) if isinstance(value, str) else frozenset(value)


def preflight(plugins: Sequence[GenerationPlugin], *, backend: str, supports_hf_hooks: bool, request_types: Iterable[RequestType]) -> None:
    """Raise `CapabilityError` unless every plugin can act on this backend and on every type of request."""
    for plugin in plugins:
        if plugin.backends is not None and backend not in plugin.backends:
            raise CapabilityError(f"plugin {plugin.name!r} does not work on backend {backend!r}; it works on: {_listed(plugin.backends)}")
        for request_type in request_types:
            if plugin.request_types is not None and request_type not in plugin.request_types:
                taken = _listed(plugin.request_types)
                raise CapabilityError(f"plugin {plugin.name!r} does not take {request_type} requests; it takes: {taken}")
        if plugin.uses_hf_hooks and not supports_hf_hooks:
            raise CapabilityError(f"plugin {plugin.name!r} uses transformers hooks, which backend {backend!r} cannot run; use backend 'hf'")
        for hook in ("hf_stopping_criteria", "hf_logits_processor"):
            if getattr(plugin, f"uses_{hook}") and not callable(getattr(plugin.plugin, hook, None)):
                raise CapabilityError(f"plugin {plugin.name!r} sets uses_{hook} but has no method {hook}(prompt_lengths)")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def postprocess_text(plugins: Sequence[GenerationPlugin], text: str) -> str:
    """Return the text after every plugin's `postprocess_text`, in order, exactly as the last one gave it."""
    for plugin in plugins:
        hook = getattr(plugin.plugin, "postprocess_text", None)
        if hook is not None:
            text = hook(text)
            if not isinstance(text, str):
                raise TypeError(f"plugin {plugin.name!r} made {type(text).__name__} of a text; postprocess_text must return str")
    return text
