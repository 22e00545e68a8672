"""Generation plugins: objects that change where generation ends, which tokens it may choose, or the final text.

Plugins are passed explicitly and checked before anything runs; they never parse. Any object can be a plugin. Attributes that it lacks
have these defaults: the name of its class, every backend, both request types, no hooks.

    watches_tokens = True, watch(tokenizer) -> TokenWatcher                ends rows; every backend
    bans_tokens = True, ban(tokenizer, vocab_size) -> TokenBan             bans tokens; backends that choose token by token
    uses_hf_stopping_criteria = True, hf_stopping_criteria(prompt_lengths) transformers' criteria for the whole batch
    uses_hf_logits_processor = True, hf_logits_processor(prompt_lengths)   transformers' processors for the whole batch
    postprocess_text(text) -> str                                          changes the final text

`watch` and `ban` are called once per row, so that no row sees another. `evalharness.generation_plugins` has ready-made plugins. A public
method whose name is almost that of a hook is refused if the plugin lacks that hook: it would never be called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import Any, Literal, Protocol, TypeAlias

from evalharness.api.errors import CapabilityError

RequestType: TypeAlias = Literal["text", "vlm"]


class TokenWatcher(Protocol):
    """Follows the new tokens of one row, except stop ids, which end the row anyway."""

    def push(self, token_id: int) -> bool:
        """Take the next token and return whether it ends the row."""
        ...


class TokenBan(Protocol):
    """Follows the new tokens of one row and bans tokens from being chosen next."""

    def push(self, token_id: int) -> None:
        """Take the next token."""
        ...

    def banned(self) -> Collection[int]:
        """Return the token ids that may not be chosen next."""
        ...


@dataclass(frozen=True)
class GenerationPlugin:
    """A plugin with every attribute filled in; `backends` and `request_types` are None for all of them."""

    plugin: Any
    name: str
    backends: frozenset[str] | None
    request_types: frozenset[str] | None
    uses_hf_stopping_criteria: bool
    uses_hf_logits_processor: bool
    watches_tokens: bool = False
    bans_tokens: bool = False

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


class RowWatchers:
    """The watchers of all plugins for one row."""

    def __init__(self, plugins: Iterable[GenerationPlugin], tokenizer: Any, stop_token_ids: Iterable[int]) -> None:
        self._watchers = [(plugin.name, plugin.plugin.watch(tokenizer)) for plugin in plugins if plugin.watches_tokens]
        self._stop_ids = frozenset(stop_token_ids)

    def push(self, token_id: int) -> str | None:
        """Return the name of the first plugin that ends the row with this token, None if the row goes on."""
        if not self._watchers or token_id in self._stop_ids:
            return None
        ending = [name for name, watcher in self._watchers if watcher.push(token_id)]  # every watcher sees every token
        return ending[0] if ending else None


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
        **{flag: bool(getattr(plugin, flag, False)) for flag in _HOOKS},
    )


def _names(plugin: Any, attribute: str) -> frozenset[str] | None:
    value = getattr(plugin, attribute, None)
    if value is None:
        return None
    return frozenset([value]) if isinstance(value, str) else frozenset(value)


_HOOKS = {
    "uses_hf_stopping_criteria": "hf_stopping_criteria(prompt_lengths)",
    "uses_hf_logits_processor": "hf_logits_processor(prompt_lengths)",
    "watches_tokens": "watch(tokenizer)",
    "bans_tokens": "ban(tokenizer, vocab_size)",
}
_POSTPROCESSOR = "postprocess_text(text)"
_ALIKE = 0.84
"""Similarity from which a name counts as a misspelt hook: `postprocess` has 0.85, `watcher` and `preprocess_text` 0.83."""


def refuse_missing_hooks(plugin: GenerationPlugin) -> None:
    """Raise `CapabilityError` for a hook that the plugin claims to use but lacks."""
    for flag, hook in _HOOKS.items():
        if getattr(plugin, flag) and not callable(getattr(plugin.plugin, hook.split("(")[0], None)):
            raise CapabilityError(f"plugin {plugin.name!r} sets {flag} but has no method {hook}")


def refuse_misspelt_hooks(plugin: GenerationPlugin) -> None:
    """Raise `CapabilityError` for a public method whose name is almost that of a hook that the plugin lacks."""
    flags = {hook: flag for flag, hook in _HOOKS.items()}
    hooks = (*flags, _POSTPROCESSOR)
    lacking = [hook for hook in hooks if not callable(getattr(plugin.plugin, hook.partition("(")[0], None))]
    kinds = (FunctionType, MethodType, classmethod, staticmethod)
    # Inherited methods too; no property is evaluated.
    methods = (name for name in dir(plugin.plugin) if isinstance(getattr_static(plugin.plugin, name, None), kinds))
    for method in (name for name in methods if not name.startswith("_")):
        for hook in lacking:
            if _is_alike(method, hook.partition("(")[0]):
                flag = f" with {flags[hook]} = True" if hook in flags else ""
                raise CapabilityError(
                    f"plugin {plugin.name!r} has a method {method!r}, which is not a hook: generation never calls it; did you mean "
                    f"{hook}{flag}? Hooks: {', '.join(hooks)}. If it is a helper, begin its name with '_'"
                )


def _is_alike(method: str, hook: str) -> bool:
    """Whether a method's name is a hook's except for capitals, underscores, the order of letters, or a few letters of a long name."""
    from difflib import SequenceMatcher  # only where there are plugins

    ours, theirs = (name.replace("_", "").lower() for name in (method, hook))
    if sorted(ours) == sorted(theirs):
        return True
    # One letter more makes another word of a name as short as `ban`: bank, bans, band.
    return len(theirs) > 3 and SequenceMatcher(None, ours, theirs).ratio() >= _ALIKE


def postprocess_text(plugins: Sequence[GenerationPlugin], text: str) -> str:
    """Return the text after every plugin's `postprocess_text`, in order. Raises `TypeError` for a plugin that returns no str."""
    for plugin in plugins:
        hook = getattr(plugin.plugin, "postprocess_text", None)
        if hook is not None:
            text = hook(text)
            if not isinstance(text, str):
                raise TypeError(f"plugin {plugin.name!r} made {type(text).__name__} of a text; postprocess_text must return str")
    return text
