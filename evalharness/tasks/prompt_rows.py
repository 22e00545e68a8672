"""Prompts in a user's JSONL file, one row per case: read and checked, errors name the line.

`prompt` is one user turn, `messages` a whole chat instead; `images` are paths relative to the file, which come before the
prompt or fill the chat's `{"type": "image"}` parts in turn. `group` joins rows that belong together, `tags` are texts by
name. Evals that score given responses also take `text`, a bare prompt without a chat, and `ends`, whether the end of the
response counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, MissingData, did_you_mean
from evalharness.api.images import why_unusable
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import Chat
from evalharness.tasks.shared import read_lines

_KEYS = ("id", "prompt", "messages", "images", "group", "tags")


@dataclass(frozen=True, kw_only=True)
class PromptCase(Case):
    """A case with its chat; `images` are paths in the order of the chat's image parts, `tools` are those offered to the model."""

    messages: Sequence[Mapping[str, Any]]
    images: tuple[str, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class PromptRow:
    """One line of a file; `where` names it in error messages."""

    values: Mapping[str, Any]
    folder: Path
    where: str

    def image_paths(self) -> tuple[Path, ...]:
        """Return the paths of the row's images; `ConfigError` if they are not paths, or unless the row has one prompt."""
        images = self.values.get("images", [])
        if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
            raise ConfigError(f"{self.where}: images must be a list of paths, got {images!r}")
        if ("prompt" in self.values) == ("messages" in self.values):
            raise ConfigError(f"{self.where} needs either prompt or messages")
        return tuple(self.folder / image for image in images)

    def case_fields(self, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the fields of a `PromptCase` without its reference; `ConfigError` where they do not make a request."""
        paths = tuple(map(str, self.image_paths()))
        fields = {
            "id": self.values["id"],
            "group": self.values.get("group"),
            "tags": self.values.get("tags", {}),
            "invalid": next((problem for path in paths if (problem := why_unusable(Path(path))) is not None), None),
            "messages": self.values["messages"] if "messages" in self.values else [self._turn(len(paths))],
            "images": paths,
            "tools": tools,
        }
        try:
            request_of(PromptCase(**fields))
        except (ContractTypeError, ContractValueError) as error:
            raise ConfigError(f"{self.where}: {error}") from error
        return fields

    def _turn(self, num_images: int) -> dict[str, Any]:
        prompt = self.values["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f"{self.where}: prompt must be a text, got {prompt!r}")
        return user_turn(prompt, num_images)


def user_turn(prompt: str, num_images: int) -> dict[str, Any]:
    """Return a user turn with its images before the prompt."""
    if not num_images:
        return {"role": "user", "content": prompt}
    return {"role": "user", "content": [*[{"type": "image"}] * num_images, {"type": "text", "text": prompt}]}


def read_rows(data_dir: Path | str | None, name: str, own_keys: Sequence[str]) -> Iterator[PromptRow]:
    """Yield the rows of `<data_dir>/<name>`; `own_keys` are the eval's keys beside those of every prompt.

    `ConfigError` names the line that is wrong; `MissingData` where there is no such file.
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
        case_id = row.values["id"]
        if case_id in seen:
            raise ConfigError(f"{row.where}: id {case_id!r} is that of line {seen[case_id]}; give each row its own")
        seen[case_id] = number
        yield row
    if not seen:
        raise ConfigError(f"{path} holds no rows; write one JSON object a line, with {', '.join(keys)}")


def rows_of_file(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, PromptRow]]:
    """Yield line numbers and rows of a JSONL file; `ConfigError` for a line that is not an object with these keys only."""
    for where, row in read_lines(path, name=path.name, error=ConfigError):
        if not isinstance(row, dict):
            raise ConfigError(f"{where} must be a JSON object, got {json.dumps(row, ensure_ascii=False)[:60]}")
        for key in row:
            if key not in keys:
                raise ConfigError(f"{where} has {key!r}{did_you_mean(key, keys) or '.'} Known: {', '.join(keys)}")
        yield int(where.rpartition(":")[2]), PromptRow(row, path.parent, where)


def _check_names(row: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` for an id, group or tags that reports cannot show."""
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
    """Return the request of a case."""
    if case.images:
        return VlmGenerationRequest(case.messages, images=case.images, tools=case.tools)
    return TextGenerationRequest(case.messages, tools=case.tools)


@dataclass(frozen=True, repr=False)
class Judgement:
    """Scores of an answer (None for an infinite one), plain JSON for tables, and what is wrong with it in words, "" if nothing is."""

    scores: Mapping[str, Any]
    details: Mapping[str, Any]
    problem: str = ""

    @property
    def all_right(self) -> bool:
        """Whether everything is as expected."""
        return not self.problem


def none_in(what: str, text: str, finish_reason: str | None) -> str:
    """Return that a text holds none of what was asked for, and that it was cut off if it was."""
    return f"{'the answer was cut at max_new_tokens: ' if finish_reason == 'length' else ''}no {what} in {text[:80]!r}"


@dataclass(frozen=True, kw_only=True)
class ScoredCase(PromptCase):
    """A case with given responses; `text` is a bare prompt, None for a chat. `ends`: the end of a response counts."""

    text: str | None = None
    ends: bool = False


def scored_fields(row: PromptRow, *, chat_ends: bool) -> dict[str, Any]:
    """Return the fields of a `ScoredCase` without its reference; `ends` is by default `chat_ends` for chats, False for texts.

    `ConfigError` where they do not make a request.
    """
    is_text = "text" in row.values
    ends = row.values.get("ends", False if is_text else chat_ends)
    if not isinstance(ends, bool):
        raise ConfigError(f"{row.where}: ends must be true or false, got {ends!r}")
    if not is_text:
        return {**row.case_fields(), "ends": ends}
    text = row.values["text"]
    if not isinstance(text, str):
        raise ConfigError(f"{row.where}: text must be a text, got {text!r}")
    beside = [key for key in ("prompt", "messages", "images") if key in row.values]
    if beside:
        raise ConfigError(f"{row.where} has text and {', '.join(beside)}; a bare text is the whole prompt")
    own = {"id": row.values["id"], "group": row.values.get("group"), "tags": row.values.get("tags", {})}
    return {**own, "messages": (), "text": text, "ends": ends}


def prompt_of(case: ScoredCase) -> Chat | str:
    """Return the prompt of a case's responses."""
    return request_of(case) if case.text is None else case.text


def known_logprobs(result: GenerationResult) -> Sequence[float]:
    """Return the known log-probabilities of a scored response; the first token of a text has none."""
    return [value for value in result.logprobs or () if value is not None]
