"""The modules that an adapter's settings name, as peft reads them, held against those that its file adapts and those that its base has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.checks import first_names
from evalharness.api.errors import CheckpointError

_TWO = "settings and weights are not of one adapter, or the file is not whole; copy it again"
_NO_SUCH = "is this the base that it was trained on? (--base-model PATH)"
# In the files of a base, but no modules of the loaded model: layers that guess further tokens, experts that become one tensor.
_NOT_LOADED = re.compile(r"(^|\.)(mtp|experts)\.")
_GUESSES = ".eh_proj.weight"  # what a layer has that guesses the next tokens, and is numbered as the model's own
_MAX_TRIAL_S = 30
_TRIAL = """
import json, re, sys
expressions, modules = json.load(sys.stdin)
for expression in map(re.compile, expressions):
    for module in modules:
        expression.match(module), expression.fullmatch(module)
"""


class Targets:
    """What adapter_config.json says of modules. `CheckpointError` for settings of another form, and patterns that are none."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self._folder = folder
        self.modules: str | list[str] | None = self._words(settings, "target_modules")
        self.saved: str | list[str] | None = self._words(settings, "modules_to_save")
        self._listed = frozenset(self.modules if isinstance(self.modules, list) else ())
        self._excluded = self._words(settings, "exclude_modules")
        self._layers_patterns = self._several(self._words(settings, "layers_pattern"))
        layers = settings.get("layers_to_transform")
        self.layers: list[int] = [layers] if isinstance(layers, int) else [] if layers is None else layers
        if not isinstance(self.layers, list) or not all(type(layer) is int for layer in self.layers):
            raise self._problem(f"layers_to_transform must be a number or a list of them, got {layers!r}")
        self.patterns = {key: settings.get(key) or {} for key in ("rank_pattern", "alpha_pattern")}
        for key, patterns in self.patterns.items():
            if not isinstance(patterns, Mapping):
                raise self._problem(f"{key} must be an object, got {patterns!r}")
        whole = [words for words in (self.modules, self._excluded) if isinstance(words, str)]
        behind_dots = [pattern for patterns in self.patterns.values() for pattern in patterns]
        self._expressions = [*whole, *map(_in_layer, self._layers_patterns), *map(_behind_dot, behind_dots)]
        for pattern, expression in zip([*whole, *self._layers_patterns, *behind_dots], self._expressions, strict=True):
            try:
                re.compile(expression)
            except (re.error, RecursionError, OverflowError) as error:
                raise self._problem(f"{pattern!r} is not a regular expression: {error}") from error

    def _words(self, settings: Mapping[str, Any], key: str) -> str | list[str] | None:
        value = settings.get(key)
        if value is None or isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            return value or None
        raise self._problem(f"{key} must be a text or a list of texts, got {value!r}")

    @staticmethod
    def _several(words: str | list[str] | None) -> list[str]:
        return [words] if isinstance(words, str) else words or []

    def _problem(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self._folder / 'adapter_config.json'}: {text}")

    def check_time(self, modules: Sequence[str]) -> None:
        """Raise `CheckpointError` for expressions that take very long on these modules, as `(a+)+$` may: nothing can stop them here.

        peft uses them in the same way, and a process in which one is at work answers no signal: another process tries them first.
        """
        if self._expressions:
            tried = json.dumps([self._expressions, list(modules)])
            try:
                subprocess.run([sys.executable, "-I", "-S", "-c", _TRIAL], input=tried, text=True, timeout=_MAX_TRIAL_S, check=True)
            except subprocess.TimeoutExpired:
                expressions = first_names(self._expressions, 3)
                raise self._problem(
                    f"the patterns {expressions} take more than {_MAX_TRIAL_S} s on the names of its modules; write simpler ones"
                ) from None

    def names(self, module: str) -> bool:
        """Return whether the settings name a module of the loaded model, by peft's rule (`check_target_module_exists`)."""
        if isinstance(self._excluded, str):
            is_excluded = re.fullmatch(self._excluded, module) is not None
        else:
            is_excluded = not set(self._excluded or ()).isdisjoint(_endings(module))
        if is_excluded or any(_lies_in(module, word) for word in self._several(self.saved)):
            return False
        if isinstance(self.modules, str):
            return self.modules == "all-linear" or re.fullmatch(self.modules, module) is not None
        if self.modules is None or module in self.modules:
            return True
        return self.is_one_of(module) and (not self.layers or self.layer_of(module) in self.layers)

    def is_one_of(self, module: str) -> bool:
        """Return whether a module's name ends with one of the listed words, whatever its layer."""
        return not self._listed.isdisjoint(_endings(module))

    def layer_of(self, module: str) -> int | None:
        """Return the number of the layer that a module is in, by peft's rule."""
        expressions = [_in_layer(pattern) for pattern in self._layers_patterns] or [r".*?\.[^.]*\.(?P<number>\d+)\."]
        found = next((match for expression in expressions if (match := re.match(expression, module))), None)
        return int(found["number"]) if found is not None else None


def check_targets(
    targets: Targets, adapted: Mapping[str, str], replaced: Mapping[str, str], base_shapes: Mapping[str, tuple[int, ...]], path: Path
) -> Iterator[str]:
    """Yield what is odd. Raises `CheckpointError` where file and settings disagree, or the settings name layers that the base has not.

    `adapted`: {module: tensor of the base}, `replaced`: {tensor: tensor of the base}, both by the names of the file. A layer that is
    missing beside others of its kind is an error; a whole part of the model without any, as a vision tower, may be meant, and is told.
    """
    known = {**{f"{module}.weight": base for module, base in adapted.items()}, **replaced}
    loaded = _loaded_names(known, base_shapes)
    modules = list(dict.fromkeys([*adapted, *(name.rpartition(".")[0] for name in loaded.values())]))  # those that patterns mean first
    linear = [name.removesuffix(".weight") for base, name in loaded.items() if len(base_shapes[base]) == 2 and name.endswith(".weight")]
    targets.check_time(modules)
    if stray := next((module for module in sorted(adapted) if not targets.names(module)), None):
        raise CheckpointError(f"{path} adapts {stray!r}, which adapter_config.json does not name; {_TWO}")
    _check_existence(targets, modules, path)
    expected = sorted(module for module in linear if module not in adapted and targets.names(module))
    if targets.modules is not None and targets.modules != "all-linear":
        yield from _check_missing("target_modules", targets.modules, expected, set(adapted), path, _ends)
    elif targets.modules is not None:
        kinds = {_kind(module) for module in adapted}
        yield from _check_missing("target_modules", "", [name for name in expected if _kind(name) in kinds], set(adapted), path, _ends)
    if targets.saved is not None:
        words = [targets.saved] if isinstance(targets.saved, str) else targets.saved
        tensors = sorted(name for name in loaded.values() if name not in replaced and any(_lies_in(name, word) for word in words))
        yield from _check_missing("modules_to_save", words, tensors, set(replaced), path, _lies_in)
    yield from _unknown(targets, modules, path)


def _check_missing(
    key: str, named: str | Sequence[str], missing: Sequence[str], present: set[str], path: Path, means: Any
) -> Iterator[str]:
    kinds = {_kind(name) for name in present}
    left = []
    for name in missing:
        if _kind(name) in kinds:
            raise CheckpointError(f"{path} has no weights for {name!r}, which adapter_config.json names ({key}); {_TWO}")
        if _NOT_LOADED.search(name) is None:
            left.append(name)
    for word in () if isinstance(named, str) else named:
        if any(means(name, word) for name in left) and not any(means(name, word) for name in present):
            raise CheckpointError(f"{key} of adapter {path.parent} names {word!r}, but {path.name} has no weights for it; copy it again")
    if left:
        kinds_left = first_names(sorted({_kind(name) for name in left}), 3)
        yield f"adapter {path.parent} adapts nothing of {kinds_left}, which its {key} names as well; these stay as in the base"


def _check_existence(targets: Targets, modules: Iterable[str], path: Path) -> None:
    """Raise for a layer by number, or a whole pattern, that the base has not."""
    if isinstance(targets.modules, list):
        layers = {targets.layer_of(module) for module in modules if targets.is_one_of(module)} if targets.layers else set()
        if gone := [layer for layer in targets.layers if layer not in layers]:
            raise CheckpointError(
                f"layers_to_transform of adapter {path.parent} names layer {gone[0]}, which its base does not have; {_NO_SUCH}"
            )
    elif targets.modules is not None and not any(targets.names(module) for module in modules):
        raise CheckpointError(f"target_modules of adapter {path.parent} fits no module of its base: {targets.modules!r}; {_NO_SUCH}")


def _unknown(targets: Targets, modules: Iterable[str], path: Path) -> Iterator[str]:
    """Yield words that mean nothing in the base; raise for one that means a layer by its number."""
    endings = {ending for module in modules for ending in _endings(module)}
    unknown = [("target_modules", word) for word in (targets.modules if isinstance(targets.modules, list) else ()) if word not in endings]
    for key, patterns in targets.patterns.items():
        for pattern in patterns:
            fits = re.compile(_behind_dot(pattern))
            if not any(fits.match(module) for module in modules):
                unknown.append((key, pattern))
    for key, word in unknown:
        if re.search(r"(^|\.)\d+(\.|$)", word.replace("\\.", ".")):
            raise CheckpointError(f"{key} of adapter {path.parent} names {word!r}, which its base does not have; {_NO_SUCH}")
        yield f"{key} of adapter {path.parent} names {word!r}, which is nothing in its base"


def _loaded_names(known: Mapping[str, str], base_shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return {tensor of the base: its name in the loaded model}, as the pairs of both that the adapter's file gives let it be told.

    They differ in what stands before the layers: `model.layers` in files of older releases is `model.language_model.layers`. Tensors of
    layers that are never loaded are left out.
    """
    prefixes = {}
    for name, base in known.items():
        ours, theirs = name.split("."), base.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            ours.pop()
            theirs.pop()
        prefixes["".join(f"{part}." for part in theirs)] = "".join(f"{part}." for part in ours)
    longest_first = sorted(prefixes, key=len, reverse=True)
    guesses = tuple(f"{name.removesuffix(_GUESSES)}." for name in base_shapes if name.endswith(_GUESSES))
    names = {base: name for name, base in known.items()}
    for base in base_shapes.keys() - names.keys():
        prefix = next((prefix for prefix in longest_first if base.startswith(prefix)), "")
        if not (guesses and base.startswith(guesses)):
            names[base] = prefixes.get(prefix, prefix) + base.removeprefix(prefix)
    return names


def _in_layer(pattern: str) -> str:
    return rf"(?:^|.*?\.)(?:{pattern})\.(?P<number>\d+)\."


def _behind_dot(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"


def _kind(name: str) -> str:
    """Return the name without the numbers of layers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name)


def _endings(module: str) -> Iterator[str]:
    """Yield a module's name and what is behind each of its dots."""
    yield module
    while "." in module:
        module = module.partition(".")[2]
        yield module


def _ends(module: str, word: str) -> bool:
    return word in _endings(module)


def _lies_in(name: str, word: str) -> bool:
    return f".{word}." in f".{name}."
