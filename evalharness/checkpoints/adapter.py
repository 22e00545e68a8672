"""A LoRA adapter: what its folder holds, where its base is, and whether its weights fit that base. Without torch.

    adapted weight = base weight + scaling · B · A        scaling = lora_alpha / r  (rslora: lora_alpha / √r)

Everything is known from adapter_config.json, the head of the adapter's weights and those of its base, so an adapter that
does not fit is refused before an engine is started. What this sum does not say (DoRA, adapted embeddings…) is refused too.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.api.checks import excerpt
from evalharness.api.errors import CheckpointError, nearest_folder
from evalharness.api.wording import plural
from evalharness.checkpoints.adapter_targets import Targets, check_targets
from evalharness.checkpoints.hub import folder_of, is_hub_name
from evalharness.checkpoints.identity import fingerprint_adapter
from evalharness.checkpoints.weights import ADAPTER_WEIGHTS, find_weights, read_head, read_json, same_tensor, tensor_blocks, tensors_of

MERGE = "merge it into its base (peft's merge_and_unload) and give that folder"
# Each changes the sum above, or what is adapted.
_OTHER_SUMS = (
    "alora_invocation_tokens",
    "fan_in_fan_out",
    "layer_replication",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)
# Ways to start training that leave the base as it is; pissa, olora, corda and loftq change it.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


def find_base(folder: Path, base_model: Path | None, root: Path, *, download: bool = False) -> Path:
    """Return the folder of an adapter's base: `base_model` if given, else what adapter_config.json names.

    A name is looked for as a path (absolute; relative to the adapter, to its parent, to `root`), then as a folder beside the
    adapter, then in the hub's cache. Raises `CheckpointError` naming where it was looked for.
    """
    if base_model is not None:
        base_model = folder_of(str(base_model), root=root, download=download) if is_hub_name(str(base_model), root) else base_model
        if not (base_model / "config.json").is_file():
            raise CheckpointError(f"--base-model {base_model} holds no config.json; give the folder of the checkpoint that {folder} adapts")
        return base_model
    settings = read_settings(folder)
    named = settings.get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip():
        raise CheckpointError(f"{folder / 'adapter_config.json'} names no base; give it with --base-model PATH")
    candidates = [base / named for base in (folder, folder.parent, root)] + [folder.parent / Path(named).name]
    found = next((path for path in candidates if (path / "config.json").is_file()), None)
    if found is None and is_hub_name(named, root):
        revision = settings.get("revision")
        try:
            return folder_of(f"{named}@{revision}" if isinstance(revision, str) and revision else named, root=root, download=download)
        except CheckpointError as error:
            raise CheckpointError(f"the base of adapter {folder}: {error}, or give its folder with --base-model PATH") from error
    if found is None:
        looked = ", ".join(dict.fromkeys(str(path) for path in candidates))
        raise CheckpointError(
            f"the base {named!r} of adapter {folder} is not there (looked for {looked}; the nearest folder that exists is "
            f"{nearest_folder(candidates[-1])}); give it with --base-model PATH"
        )
    return found.resolve()


def read_settings(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json. Raises `CheckpointError` for a kind of adapter that cannot be evaluated as it is."""
    settings = read_json(folder / "adapter_config.json")
    if settings is None:
        raise CheckpointError(f"{folder} is not an adapter: it has no adapter_config.json")
    if settings.get("peft_type") != "LORA":
        raise CheckpointError(
            f"{folder} is an adapter of peft_type {settings.get('peft_type')!r}; only 'LORA' can be run as an adapter: {MERGE}"
        )
    others = [name for name in _OTHER_SUMS if settings.get(name)]
    if others:
        raise CheckpointError(f"adapter {folder} has {', '.join(others)} set, which is more than plain LoRA: {MERGE}")
    if settings.get("init_lora_weights", True) not in _PLAIN_STARTS:
        raise CheckpointError(
            f"adapter {folder} was started with init_lora_weights {settings['init_lora_weights']!r}, which changes the base: {MERGE}"
        )
    return settings


_PREFIX = "base_model.model."
_TOO_LARGE = 1e9  # for a rank or an alpha
_USUAL_SCALING = (1 / 16, 16.0)
# Where the model's own name for a weight and the checkpoint's differ, it is in these parts.
_WRAPPERS = frozenset({"base_model", "language_model", "model"})


@dataclass(frozen=True)
class LoraWeight:
    """The adapter of one weight of the base: `base_name` is the base's tensor, `a` (rank, in) and `b` (out, rank) the adapter's."""

    base_name: str
    a: str
    b: str
    rank: int
    scaling: float


@dataclass(frozen=True)
class Adapter:
    """An adapter that fits its base.

    `replaced`: {the base's tensor: the adapter's, which takes its place} (peft's modules_to_save, biases).
    `fingerprint` (SHA-256, hex): of settings and weights, wherever folder and base lie. `notices`: what is odd about it.
    `settings`: adapter_config.json.
    """

    path: Path
    weights: tuple[LoraWeight, ...]
    replaced: Mapping[str, str]
    fingerprint: str
    notices: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def num_tensors(self) -> int:
        """How many tensors the adapter has."""
        return 2 * len(self.weights) + len(self.replaced)

    def to_json(self) -> dict[str, Any]:
        """Return the facts for run.json."""
        return {
            "path": str(self.path),
            "fingerprint": self.fingerprint,
            "ranks": sorted({weight.rank for weight in self.weights}),
            "scalings": sorted({weight.scaling for weight in self.weights}),
            "num_adapted_weights": len(self.weights),
            "num_replaced_weights": len(self.replaced),
        }


def read_adapter(folder: Path, base_shapes: Mapping[str, tuple[int, ...]]) -> Adapter:
    """Return the adapter, fitted to a base whose tensors have these shapes.

    Raises `CheckpointError` where any of its weights would be ignored or does not fit.
    """
    settings = read_settings(folder)
    targets = Targets(settings, folder)
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        is_pickled = (folder / "adapter_model.bin").is_file()
        hint = " but adapter_model.bin, a pickle, which can run any code; save it again as safetensors" if is_pickled else ""
        raise CheckpointError(f"{folder} has no {ADAPTER_WEIGHTS}{hint}")
    shapes = shapes_of(read_head(path))
    if not shapes:
        raise CheckpointError(f"{path} holds no weights; copy it again")
    fit = functools.partial(_fitting, path=path, known=_by_core(base_shapes), base_shapes=base_shapes)
    pairs, whole = _sort_names(shapes, path)
    targets.check_time([module.removeprefix(_PREFIX) for module in pairs])
    weights = tuple(_lora_weight(module, names, shapes, settings, path, fit) for module, names in sorted(pairs.items()))
    replaced = {fit(name, shapes[name]): name for name in sorted(whole)}
    counts = Counter([*(weight.base_name for weight in weights), *replaced])
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise CheckpointError(f"{path} adapts {twice!r} twice, under different names; copy it again")
    adapted = {module.removeprefix(_PREFIX): weight.base_name for module, weight in zip(sorted(pairs), weights, strict=True)}
    bare = {name.removeprefix(_PREFIX): base for base, name in replaced.items()}
    odd = (*check_targets(targets, adapted, bare, base_shapes, path), *_oddities(folder, weights, replaced))
    return Adapter(folder, weights, replaced, fingerprint_adapter(folder), odd, settings)


def shapes_of(head: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return {tensor: shape} of a safetensors head."""
    return {name: tuple(tensor["shape"]) for name, tensor in tensors_of(head).items()}


def fits_of(names: Iterable[str], wanted: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return {name: the one of `wanted` that means the same weight}, by the rule that fits adapters to bases; absent without one."""
    known = _by_core(wanted)
    return {name: known[core][0] for name in names if len(known.get(core := _core(name), ())) == 1}


def _core(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _by_core(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}
    for name in shapes:
        known.setdefault(_core(name), []).append(name)
    return known


def _sort_names(shapes: Mapping[str, tuple[int, ...]], path: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return {module: {"A": tensor, "B": tensor}} and the names of tensors that take the place of the base's."""
    pairs: dict[str, dict[str, str]] = {}
    whole = []
    for name in shapes:
        match = re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?\.weight", name)
        if match:
            pairs.setdefault(match[1], {})[match[2]] = name
        elif "lora_" in name:
            raise CheckpointError(f"{path} has {name!r}, which is more than plain LoRA: {MERGE}")
        else:
            whole.append(name)
    for module, pair in pairs.items():
        if len(pair) != 2:
            raise CheckpointError(f"{path} has only {next(iter(pair.values()))!r} of {module}; A and B belong together, copy it again")
    return pairs, whole


def _lora_weight(
    module: str,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    settings: Mapping[str, Any],
    path: Path,
    fit: Callable[[str, tuple[int, ...]], str],
) -> LoraWeight:
    a, b = shapes[names["A"]], shapes[names["B"]]
    if len(a) != 2 or len(b) != 2:
        raise CheckpointError(
            f"{path} adapts {module} with {len(a)}-dimensional weights; only linear layers can be run as an adapter: {MERGE}"
        )
    if a[0] != b[1]:
        raise CheckpointError(f"{path} has rank {a[0]} in {names['A']!r} but {b[1]} in {names['B']!r}; they belong to different adapters")
    base_name = fit(f"{module}.weight", (b[0], a[1]))
    rank, alpha = (_of_module(settings, key, module, path) for key in ("r", "lora_alpha"))
    if rank != a[0]:
        raise CheckpointError(
            f"{path} has rank {a[0]} in {names['A']!r} but adapter_config.json says {rank:g}; they belong to different adapters"
        )
    return LoraWeight(base_name, names["A"], names["B"], a[0], alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank))


def _of_module(settings: Mapping[str, Any], key: str, module: str, path: Path) -> float:
    """Return r or lora_alpha of a module: its pattern's, else the adapter's."""
    patterns = settings.get("rank_pattern" if key == "r" else "alpha_pattern") or {}
    bare = module.removeprefix(_PREFIX)
    value = next((value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", bare)), settings.get(key))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _TOO_LARGE:
        raise CheckpointError(
            f"{key} in {path.parent / 'adapter_config.json'} must be above 0 and below {_TOO_LARGE:g} for {bare}, "
            f"got {excerpt(repr(value), 40)}"
        )
    return float(value)


def _fitting(
    name: str, shape: tuple[int, ...], path: Path, known: Mapping[str, list[str]], base_shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """Return the base's tensor that the adapter's `name` means."""
    bare = name.removeprefix(_PREFIX)
    names = [bare] if bare in base_shapes else known.get(_core(bare), [])
    if len(names) != 1:
        what = f"{plural(len(names), 'weight')}, such as {names[0]!r}" if names else "no weight of its base, so it would be ignored"
        raise CheckpointError(f"{path} adapts {bare!r}, which fits {what}; is this the base that it was trained on? (--base-model PATH)")
    if base_shapes[names[0]] != shape:
        raise CheckpointError(
            f"{path} adapts {bare!r} of shape {list(shape)}, but the base's {names[0]!r} has {list(base_shapes[names[0]])}; "
            "is this the base that it was trained on? (--base-model PATH)"
        )
    return names[0]


def replaces_nothing(adapter: Adapter, base: Path) -> bool:
    """Return whether the adapter adds nothing, and the weights that it has in place of its base's equal them, byte for byte."""
    heads = [(base / name, head) for name, head in find_weights(base, allow_pickle=True).heads.items()]
    theirs = {name: (file, head[name]) for file, head in heads for name in tensors_of(head)}
    path = adapter.path / ADAPTER_WEIGHTS
    ours = read_head(path)
    return not _adds_anything(adapter.path, adapter.weights) and all(
        same_tensor((path, ours[own]), theirs[name]) for name, own in adapter.replaced.items()
    )


def _adds_anything(folder: Path, weights: Iterable[LoraWeight]) -> bool:
    path = folder / ADAPTER_WEIGHTS
    head = read_head(path)
    return any(_any_set(path, head[weight.a]) and _any_set(path, head[weight.b]) for weight in weights)


def _any_set(path: Path, tensor: Mapping[str, Any]) -> bool:
    """Return whether any value of a tensor differs from zero."""
    # 0x80 ends a zero with a sign
    return any(block.count(0) + block.count(0x80) != len(block) for block in tensor_blocks(path, tensor))


def _oddities(folder: Path, weights: Sequence[LoraWeight], replaced: Mapping[str, str]) -> Iterable[str]:
    if not replaced and not _adds_anything(folder, weights):
        yield f"adapter {folder} changes nothing: every A or every B is zero; was it saved before it was trained?"
    least, most = _USUAL_SCALING
    odd = next((weight for weight in weights if not least <= weight.scaling <= most), None)
    if odd is not None:
        yield (
            f"adapter {folder} is scaled by {odd.scaling:g} (lora_alpha over r), which is unusual; "
            "compare adapter_config.json with the training settings"
        )
