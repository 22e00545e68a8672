"""Which model of a server answers: found in its list, and, where its folder can be seen from here, held against the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evalharness.api.engine_options import ModelLoadConfig
from evalharness.api.errors import BackendError, CheckpointError, ConfigError, RequestError
from evalharness.backends.openai.client import HttpClient
from evalharness.checkpoints.adapter import fingerprint_adapter
from evalharness.checkpoints.checkpoint_adapter_settings import is_adapter
from evalharness.checkpoints.weights import find_weights, fingerprint_weights

__all__ = ["ServedModel", "check_weights", "find_model", "listed_models"]

_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServedModel:
    """A model of a server's list; `is_adapter`: the server says that it is an adapter, loaded already."""

    name: str
    max_model_len: int | None
    is_adapter: bool
    root: str | None


def listed_models(client: HttpClient) -> list[ServedModel]:
    """Return the models that a server lists; `BackendError` where it has no such list."""
    try:
        listed = client.ask("/v1/models")
    except RequestError as error:  # no request of an eval's, so none is at fault
        raise BackendError(f"{client.url}/v1/models cannot be read: {error}") from error
    cards = listed.get("data") if isinstance(listed, Mapping) else None
    if not isinstance(cards, list) or not all(isinstance(card, Mapping) and isinstance(card.get("id"), str) for card in cards):
        raise BackendError(f"{client.url}/v1/models lists no models; is this a server of OpenAI's form?")
    lengths = {card["id"]: _length(card) for card in cards}
    return [
        ServedModel(
            card["id"],
            lengths[card["id"]] or lengths.get(_text(card.get("parent")) or ""),
            _text(card.get("parent")) is not None,
            _text(card.get("root")),
        )
        for card in cards
    ]


def find_model(client: HttpClient, wanted: str | None) -> ServedModel:
    """Return the model of that name, else the only one that is no adapter; `ConfigError` where there is none such."""
    models = listed_models(client)
    candidates = [model for model in models if (not model.is_adapter if wanted is None else model.name == wanted)]
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(model.name for model in models[:20])
    if wanted is not None:
        raise ConfigError(f"the server has no model {wanted!r}; it has: {names or 'none'}")
    raise ConfigError(f"the server has {len(candidates)} models; name one with --served-model: {names}")


def check_weights(served: ServedModel, config: ModelLoadConfig, url: str) -> None:
    """Raise `ConfigError` where the server runs on this machine, from a folder whose weights are others than the checkpoint's.

    What is served from elsewhere cannot be told: then it is its owner's word.
    """
    root = Path(served.root) if served.root is not None and urlsplit(url).hostname in _HERE else None
    if root is None or not _is_folder(root):
        return
    asked = Path(config.adapter_path if served.is_adapter and config.adapter_path is not None else config.model_name_or_path)
    if is_adapter(root) != is_adapter(asked):
        return  # the base of an adapter that was named by hand
    try:
        theirs, ours = (_fingerprint(folder, config.allow_pickle) for folder in (root, asked))
    except (CheckpointError, OSError):
        return  # no folder that we understand
    if theirs != ours:
        raise ConfigError(f"the server at {url} runs {root}, whose weights are others than those of {asked}; serve that, or ask for that")


def _is_folder(root: Path) -> bool:
    try:
        return root.is_dir()
    except OSError:  # no name of a folder at all
        return False


def _fingerprint(folder: Path, allow_pickle: bool) -> str:
    if is_adapter(folder):
        return fingerprint_adapter(folder)
    return fingerprint_weights(folder, find_weights(folder, allow_pickle=allow_pickle))


def _length(card: Mapping[str, Any]) -> int | None:
    length = card.get("max_model_len")
    return length if isinstance(length, int) and length > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
