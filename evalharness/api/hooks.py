"""Generation plugins: objects that change where generation ends, which tokens it may choose, or the final text.

Plugins are passed explicitly and checked before anything runs; they never parse. An object is a plugin if it has at least one hook; a hook
that it has is called. Without attributes `name`, `backends` and `request_types` it has the name of its class and is for all of both.

    watch(tokenizer) -> TokenWatcher           ends rows; every backend that sees tokens
    ban(tokenizer, vocab_size) -> TokenBan     bans tokens; backends that choose token by token
    hf_stopping_criteria(prompt_lengths)       transformers' criteria for the whole batch
    hf_logits_processor(prompt_lengths)        transformers' processors for the whole batch
    postprocess_text(text) -> str              changes the final text

`watch` and `ban` are called once per row, so that no row sees another. A `LogitsProcessor` or `StoppingCriteria` of transformers is a
plugin as it is, whatever other hooks it has, and so is transformers' list of them: each row has a copy of its own, which gets that row's
ids without padding. If it has the hook hf_logits_processor or hf_stopping_criteria itself, that is called in place of the object. A public
method whose name is almost that of a hook is refused if the plugin lacks that hook: it would never be called.
`evalharness.generation_plugins` has ready-made plugins.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import getattr_static, signature
from types import FunctionType, MethodType
from typing import Any, Literal, Protocol, TypeAlias, get_args

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


_HOOKS = {
    "hf_stopping_criteria": "hf_stopping_criteria(prompt_lengths)",
    "hf_logits_processor": "hf_logits_processor(prompt_lengths)",
    "watch": "watch(tokenizer)",
    "ban": "ban(tokenizer, vocab_size)",
    "postprocess_text": "postprocess_text(text)",
}
LOGITS_PROCESSOR, STOPPING_CRITERIA = "LogitsProcessor", "StoppingCriteria"
"""Transformers' classes whose objects are plugins as they are; an object's class counts among its hooks."""
_HF_HOOKS = frozenset({"hf_stopping_criteria", "hf_logits_processor", LOGITS_PROCESSOR, STOPPING_CRITERIA})


@dataclass(frozen=True)
class GenerationPlugin:
    """A plugin with every attribute filled in; `backends` and `request_types` are None for all of them."""

    plugin: Any
    name: str
    hooks: frozenset[str]
    backends: frozenset[str] | None = None
    request_types: frozenset[str] | None = None

    @property
    def watches_tokens(self) -> bool:
        """Whether the plugin may end rows by their tokens."""
        return "watch" in self.hooks

    @property
    def bans_tokens(self) -> bool:
        """Whether the plugin may ban tokens while a row is written."""
        return "ban" in self.hooks

    @property
    def uses_hf_hooks(self) -> bool:
        """Whether the plugin needs transformers' generate loop."""
        return not self.hooks.isdisjoint(_HF_HOOKS)

    @property
    def is_copied_for_rows(self) -> bool:
        """Whether the plugin is an object of transformers, of which each row has a copy."""
        return not self.hooks.isdisjoint((LOGITS_PROCESSOR, STOPPING_CRITERIA))

    def for_row(self) -> Any:
        """Return a copy of transformers' object for one row; models and tokenizers that it holds are shared."""
        held = getattr(self.plugin, "__dict__", {}).values()
        return copy.deepcopy(self.plugin, {id(value): value for value in held if hasattr(value, "forward") or hasattr(value, "decode")})

    def hf_stopping_criteria(self, prompt_lengths: Sequence[int]) -> list[Any]:
        """Return stopping criteria; `row[prompt_length:]` is exactly the new tokens of that row."""
        return _listed(self.plugin.hf_stopping_criteria(list(prompt_lengths))) if "hf_stopping_criteria" in self.hooks else []

    def hf_logits_processor(self, prompt_lengths: Sequence[int]) -> list[Any]:
        """Return logits processors; `row[prompt_length:]` is exactly the new tokens of that row."""
        return _listed(self.plugin.hf_logits_processor(list(prompt_lengths))) if "hf_logits_processor" in self.hooks else []


def _listed(made: Any) -> list[Any]:
    """Return what a hook gave: a list of objects, one object, or None for none."""
    return [] if made is None else list(made) if isinstance(made, (list, tuple)) else [made]


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
    """Return the plugins with their missing attributes filled in; `CapabilityError` for an object that would never be called."""
    if isinstance(plugins, (str, bytes)) or not isinstance(plugins, Iterable):
        raise CapabilityError(f"plugins must be a list such as [ObjectCap(60)], got {reprlib.repr(plugins)}")
    return tuple(_normalise(plugin) for plugin in _each(plugins))


def _each(plugins: Iterable[Any]) -> Iterator[Any]:
    """Yield the plugins, those of a `LogitsProcessorList` or `StoppingCriteriaList` one by one."""
    for plugin in plugins:
        if isinstance(plugin, list) and _transformers_classes(plugin):
            yield from _each(plugin)
        else:
            yield plugin


def _normalise(plugin: Any) -> GenerationPlugin:
    if isinstance(plugin, GenerationPlugin):
        return plugin
    if isinstance(plugin, type):
        raise CapabilityError(f"plugins holds the class {plugin.__name__}; make one of it: {plugin.__name__}(…)")
    name = str(getattr(plugin, "name", None) or type(plugin).__name__)
    hooks = {hook for hook in _HOOKS if _has(plugin, hook, name)}
    replaced_by = {LOGITS_PROCESSOR: "hf_logits_processor", STOPPING_CRITERIA: "hf_stopping_criteria"}  # which may give the object itself
    hooks |= {kind for kind in _transformers_classes(plugin) if replaced_by[kind] not in hooks}
    _refuse_misspelt_hooks(plugin, name, hooks)
    if not hooks:
        raise CapabilityError(
            f"plugin {name!r} has no hook, so generation would never call it: {reprlib.repr(plugin)}. Give it one of "
            f"{', '.join(_HOOKS.values())}, or give a LogitsProcessor or StoppingCriteria of transformers"
        )
    backends, request_types = _names(plugin, "backends", name), _names(plugin, "request_types", name, get_args(RequestType))
    return GenerationPlugin(plugin, name, frozenset(hooks), backends, request_types)


def _has(plugin: Any, hook: str, name: str) -> bool:
    """Return whether a plugin has a hook: a method of its name, not None, which turns an inherited one off."""
    found = getattr(plugin, hook, None)
    if found is not None and not callable(found):
        raise CapabilityError(f"plugin {name!r} has {hook} = {reprlib.repr(found)}, which is not a method; write {_HOOKS[hook]}")
    if found is not None:
        try:
            signature(found).bind(*[None] * (1 + _HOOKS[hook].count(",")))
        except TypeError as error:
            raise CapabilityError(f"plugin {name!r}: {hook} is called as {_HOOKS[hook]}, and {error}") from None
        except ValueError:
            pass  # some builtins have no signature
    return found is not None


def _transformers_classes(plugin: Any) -> set[str]:
    """Return which of transformers' classes an object, or a list of such objects, is of; found by name, so that nothing is imported."""
    names = {base.__name__.removesuffix("List") for base in type(plugin).__mro__ if base.__module__.startswith("transformers.")}
    return names & {LOGITS_PROCESSOR, STOPPING_CRITERIA}


def _names(plugin: Any, attribute: str, name: str, known: Collection[str] = ()) -> frozenset[str] | None:
    """Return a plugin's backends or types of requests, those that are `known` if only these exist; None for all."""
    value = getattr(plugin, attribute, None)
    if value is None:
        return None
    names = [value] if isinstance(value, str) else value
    is_listed = isinstance(names, Collection) and all(isinstance(one, str) for one in names)
    if not is_listed or (known and not set(names) <= set(known)):
        legal = f"of {' and '.join(known)}" if known else "such as ['hf', 'vllm']"
        raise CapabilityError(f"plugin {name!r} has {attribute} = {reprlib.repr(value)}; it must be a list {legal}, or None for all")
    return frozenset(names)


_ALIKE = 0.84
"""Similarity from which a name counts as a misspelt hook: `postprocess` has 0.85, `watcher` and `preprocess_text` 0.83."""


def _refuse_misspelt_hooks(plugin: Any, name: str, hooks: Collection[str]) -> None:
    """Raise `CapabilityError` for a public method whose name is almost that of a hook that the plugin lacks."""
    kinds = (FunctionType, MethodType, classmethod, staticmethod)
    # Inherited methods too; no property is evaluated.
    methods = (method for method in dir(plugin) if isinstance(getattr_static(plugin, method, None), kinds))
    for method in (method for method in methods if not method.startswith("_")):
        for hook in (hook for hook in _HOOKS if hook not in hooks and method != hook):
            if _is_alike(method, hook):
                raise CapabilityError(
                    f"plugin {name!r} has a method {method!r}, which is not a hook: generation never calls it; did you mean "
                    f"{_HOOKS[hook]}? Hooks: {', '.join(_HOOKS.values())}. If it is a helper, begin its name with '_'"
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
        if "postprocess_text" in plugin.hooks:
            text = plugin.plugin.postprocess_text(text)
            if not isinstance(text, str):
                raise TypeError(f"plugin {plugin.name!r} made {type(text).__name__} of a text; postprocess_text must return str")
    return text
