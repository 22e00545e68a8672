"""Questions asked by hand: one from words and pictures, or one per row of a JSONL file. Knows no engine and no command line.

A row has `prompt` (one user turn) or `messages` (a whole chat), and may have `id`, `system`, `images` (relative to the file; they stand
before the prompt, or take the chat's `{"type": "image"}` parts in turn) and `options`, decoding options by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError
from evalharness.api.images import image_size
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import TextGenerationRequest, VlmGenerationRequest
from evalharness.api.suggestions import nearest_folder
from evalharness.config import RunConfig
from evalharness.tasks.prompt_rows import PromptRow, rows_of_file, user_turn

__all__ = ["OneOff", "one_off", "options_of", "read_one_offs"]

Request: TypeAlias = "TextGenerationRequest | VlmGenerationRequest"

_KEYS = ("id", "prompt", "messages", "system", "images", "options")
_DECODING = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "max_thinking_tokens")


@dataclass(frozen=True)
class OneOff:
    """One question; `options` are those of its row, by name."""

    id: str
    request: Request
    images: tuple[Path, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def one_off(prompt: str, *, system: str | None = None, images: Sequence[Path] = (), name: str = "prompt") -> OneOff:
    """Return the question of one user turn, pictures first. Raises `ConfigError` or `ImageError` for what cannot be asked."""
    if not prompt.strip():
        raise ConfigError("the prompt is empty; give --prompt TEXT, or --prompt - for standard input")
    turns = [user_turn(prompt, len(images))]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    return OneOff(name, _request(turns, images), tuple(images))


def read_one_offs(path: Path) -> list[OneOff]:
    """Return the questions of a JSONL file; `ConfigError` names the line of whatever is wrong."""
    if not path.is_file():
        raise ConfigError(f"{path} is no file; the nearest folder that exists is {nearest_folder(path)}")
    found = [_question(row, number) for number, row in rows_of_file(path, _KEYS)]
    if not found:
        raise ConfigError(f"{path} holds no request; write one JSON object a line, with {', '.join(_KEYS)}")
    return found


def _question(row: PromptRow, number: int) -> OneOff:
    values, where, paths = row.values, row.where, row.image_paths()
    if "messages" in values and "system" in values:
        raise ConfigError(f"{where} has messages and system; put the system turn into messages")
    for key in ("id", "prompt", "system"):
        if key in values and not isinstance(values[key], str):
            raise ConfigError(f"{where}: {key} must be a text, got {values[key]!r}")
    name, options = values.get("id", f"line {number}"), values.get("options", {})
    try:
        GenerationOptions.from_mapping(options)  # refuses what is none
        if "messages" in values:
            return OneOff(name, _request(values["messages"], paths), paths, options)
        return replace(one_off(values["prompt"], system=values.get("system"), images=paths, name=name), options=options)
    except (ContractTypeError, ContractValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _request(messages: Sequence[Mapping[str, Any]], images: Sequence[Path]) -> Request:
    if not images:
        return TextGenerationRequest(messages)
    for image in images:
        image_size(image)  # says what is wrong with a picture before a checkpoint is loaded
    # Verified: only then the generation tells the patch grid, and with it the size at which the model saw the picture.
    return VlmGenerationRequest(messages, images=tuple(map(str, images)), verify=True)


def options_of(question: OneOff, run: RunConfig, *, stop: Sequence[str] = (), sample: int = 0) -> GenerationOptions:
    """Return how a sample of the question is decoded: what its row says, unless the run says otherwise; sample k has seed + k."""
    given = {name: getattr(run, name) for name in _DECODING if getattr(run, name) is not None}
    seed = run.seed if run.is_set("seed") else question.options.get("seed", run.seed)
    stops: dict[str, Any] = {"stop": {"stop": list(stop)}} if stop else {}
    return GenerationOptions.from_mapping({**question.options, **given, **stops, "seed": int(seed) + sample})
