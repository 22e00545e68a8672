"""The settings of a LoRA adapter, and where its base is. Without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evalharness.api.errors import CheckpointError
from evalharness.api.suggestions import nearest_folder

__all__ = ["MERGE", "find_base", "is_adapter", "read_settings"]

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


def is_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter and no whole model."""
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def find_base(folder: Path, base_model: Path | None, root: Path) -> Path:
    """Return the folder of an adapter's base: `base_model` if given, else what adapter_config.json names.

    A name is looked for as a path (absolute; relative to the adapter, to its parent, to `root`), then as a folder beside the
    adapter. Nothing is downloaded. Raises `CheckpointError` naming where it was looked for.
    """
    if base_model is not None:
        if not (base_model / "config.json").is_file():
            raise CheckpointError(f"--base-model {base_model} holds no config.json; give the folder of the checkpoint that {folder} adapts")
        return base_model
    named = read_settings(folder).get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip():
        raise CheckpointError(f"{folder / 'adapter_config.json'} names no base; give it with --base-model PATH")
    candidates = [base / named for base in (folder, folder.parent, root)] + [folder.parent / Path(named).name]
    found = next((path for path in candidates if (path / "config.json").is_file()), None)
    if found is None:
        looked = ", ".join(dict.fromkeys(str(path) for path in candidates))
        raise CheckpointError(
            f"the base {named!r} of adapter {folder} is not there (looked for {looked}; the nearest folder that exists is "
            f"{nearest_folder(candidates[-1])}); give it with --base-model PATH, nothing is downloaded"
        )
    return found.resolve()


def read_settings(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json. Raises `CheckpointError` for a kind of adapter that cannot be evaluated as it is."""
    path = folder / "adapter_config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; it may have been written only in part") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(settings).__name__}")
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
