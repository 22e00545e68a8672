"""Rows of prompts in a user's JSONL file: what all evals on such files share, checked with the line of whatever is wrong.

`prompt` is one user turn, `messages` a whole chat instead; `images` are relative to the file, and stand before the prompt or
take the chat's `{"type": "image"}` parts in turn. `group` joins rows that belong together, `tags` are texts by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, MissingData, did_you_mean
from evalharness.api.images import why_unusable
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import Chat
from evalharness.tasks.shared import loads

__all__ = [
    "Judgement",
    "PromptCase",
    "PromptRow",
    "ScoredCase",
    "known_logprobs",
    "prompt_of",
    "read_rows",
    "request_of",
    "rows_of_file",
    "scored_fields",
    "user_turn",
]

_KEYS = ("id", "prompt", "messages", "images", "group", "tags")


@dataclass(frozen=True, kw_only=True)
class PromptCase(Case):
    """A case with its chat; `images` are paths, in the order of the chat's image parts, `tools` what the model is offered."""

    messages: Sequence[Mapping[str, Any]]
    images: tuple[str, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class PromptRow:
    """One line of a file, with `where` it stands for messages of errors."""

    values: Mapping[str, Any]
    folder: Path
    where: str

    def image_paths(self) -> tuple[Path, ...]:
        """Return the row's pictures; `ConfigError` where they are none, or where the row has not one question."""
        images = self.values.get("images", [])
        if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
            raise ConfigError(f"{self.where}: images must be a list of paths, got {images!r}")
        if ("prompt" in self.values) == ("messages" in self.values):
            raise ConfigError(f"{self.where} needs either prompt or messages")
        return tuple(self.folder / image for image in images)

    def asked(self, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the fields of a `PromptCase` but for its reference; `ConfigError` where it could not be asked."""
        paths = tuple(map(str, self.image_paths()))
        fields = {
            "id": self.values["id"],
            "group": self.values.get("group"),
            "tags": self.values.get("tags", {}),
            "invalid": next((problem for path in paths if (problem := why_unusable(Path(path))) is not None), None),
            "messages": self.values["messages"] if "messages" in self.values else self._one_turn(len(paths)),
            "images": paths,
            "tools": tools,
        }
        try:
            request_of(PromptCase(**fields))
        except (ContractTypeError, ContractValueError) as error:
            raise ConfigError(f"{self.where}: {error}") from error
        return fields

    def _one_turn(self, num_images: int) -> list[dict[str, Any]]:
        prompt = self.values["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f"{self.where}: prompt must be a text, got {prompt!r}")
        return [user_turn(prompt, num_images)]


def user_turn(prompt: str, num_images: int) -> dict[str, Any]:
    """Return one user turn, its pictures first."""
    if not num_images:
        return {"role": "user", "content": prompt}
    return {"role": "user", "content": [*[{"type": "image"}] * num_images, {"type": "text", "text": prompt}]}


def read_rows(data_dir: Path | str | None, name: str, own_keys: Sequence[str]) -> Iterator[PromptRow]:
    """Yield the rows of `<data_dir>/<name>`, which may have the keys above and the eval's own. `ConfigError` names the line; `MissingData`
    where there is no such file.
    """
    keys = (*_KEYS, *own_keys)
    if data_dir is None:
        raise MissingData(f"no data folder was given; give one with --data that holds {name}")
    path = Path(data_dir) / name
    if not path.is_file():
        raise MissingData(f"{path} does not exist; write one JSON object a line, with {', '.join(keys)}")
    seen: dict[str, int] = {}
    for number, row in rows_of_file(path, keys):
        _check_names(row.values, row.where)
        name = row.values["id"]
        if name in seen:
            raise ConfigError(f"{row.where}: id {name!r} is that of line {seen[name]}; give each row its own")
        seen[name] = number
        yield row
    if not seen:
        raise ConfigError(f"{path} holds no rows; write one JSON object a line, with {', '.join(keys)}")


def rows_of_file(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, PromptRow]]:
    """Yield the rows of a JSONL file by the numbers of their lines; `ConfigError` for lines that are no object of these keys."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        where = f"{path.name}:{number}"
        if line.strip():
            yield number, PromptRow(_object(line, where, keys), path.parent, where)


def _object(line: str, where: str, keys: Sequence[str]) -> dict[str, Any]:
    try:
        row = loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where} must be a JSON object, got {line[:60]}")
    for key in row:
        if key not in keys:
            raise ConfigError(f"{where} has {key!r}{did_you_mean(key, keys) or '.'} Known: {', '.join(keys)}")
    return row


def _check_names(row: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` for an id, group or tags that no report could show."""
    case_id, group, tags = row.get("id"), row.get("group"), row.get("tags", {})
    if not isinstance(case_id, str) or not case_id.strip() or not case_id.isprintable() or "::" in case_id:
        raise ConfigError(
            f"{where}: id must be a printable text without '::', got {case_id!r}; give each row its own, such as \"invoice-7\""
        )
    if group is not None and (not isinstance(group, str) or not group.strip()):
        raise ConfigError(f"{where}: group must be a text, the same for rows that belong together, got {group!r}")
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise ConfigError(f'{where}: tags must be texts by name, such as {{"kind": "easy"}}, got {tags!r}')


def request_of(case: PromptCase) -> TextGenerationRequest | VlmGenerationRequest:
    """Return the question of a row."""
    if case.images:
        return VlmGenerationRequest(case.messages, images=case.images, tools=case.tools)
    return TextGenerationRequest(case.messages, tools=case.tools)


@dataclass(frozen=True, repr=False)
class Judgement:
    """How an answer does: numbers, plain facts for tables, and in words what is wrong ("" if nothing)."""

    scores: Mapping[str, float]
    details: Mapping[str, Any]
    problem: str

    @property
    def all_right(self) -> bool:
        """Whether everything is as expected, as the eval's own score of that name says."""
        return self.scores["all_right"] == 1.0


# Rows of prompts with given responses: what the evals of choices and of perplexity share


@dataclass(frozen=True, kw_only=True)
class ScoredCase(PromptCase):
    """A case whose responses are given; `text` is its prompt where it is no chat, None where it is one."""

    text: str | None = None
    ends: bool = False


def scored_fields(row: PromptRow, *, chat_ends: bool) -> dict[str, Any]:
    """Return the fields of a `ScoredCase` but for its reference; `ends` is `chat_ends` for chats and False for texts, unless it is said.

    `ConfigError` where the row could not be asked.
    """
    is_text = "text" in row.values
    ends = row.values.get("ends", False if is_text else chat_ends)
    if not isinstance(ends, bool):
        raise ConfigError(f"{row.where}: ends must be true or false, got {ends!r}")
    if not is_text:
        return {**row.asked(), "ends": ends}
    text = row.values["text"]
    if not isinstance(text, str):
        raise ConfigError(f"{row.where}: text must be a text, got {text!r}")
    beside = [key for key in ("prompt", "messages", "images") if key in row.values]
    if beside:
        raise ConfigError(f"{row.where} has text and {', '.join(beside)}; a bare text is the whole prompt")
    own = {"id": row.values["id"], "group": row.values.get("group"), "tags": row.values.get("tags", {})}
    return {**own, "messages": (), "text": text, "ends": ends}


def prompt_of(case: ScoredCase) -> Chat | str:
    """Return what a case's responses follow."""
    return request_of(case) if case.text is None else case.text


def known_logprobs(result: GenerationResult) -> Sequence[float]:
    """Return the log-probabilities of a scored response; without the first where nothing stands before it."""
    return [value for value in result.logprobs or () if value is not None]
