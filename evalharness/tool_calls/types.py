"""A tool call in an answer, an answer with all of its calls, and a tool's JSON Schema applied to the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.json_schema import AnswerDecoder
from evalharness.api.tools import Tool

MAX_CALLS = 500
"""Calls that are read in one answer. Reading and checking one takes longer than a model takes to repeat it in eight characters."""


@dataclass(frozen=True)
class ToolCall:
    """One call in an answer. `span`: start and end in the text, counted in characters. `error`: why it must not be executed.

    `name` is None where the text does not say it; `arguments` hold what could be read.
    """

    name: str | None
    arguments: Mapping[str, Any]
    raw_text: str
    span: tuple[int, int]
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the call as plain JSON types."""
        return {**vars(self), "arguments": dict(self.arguments), "span": list(self.span)}


@dataclass(frozen=True)
class ToolAnswer:
    """What an answer calls, in the order of the text, and what it says beside (`content`). `format`: how calls were written."""

    calls: tuple[ToolCall, ...]
    content: str
    format: str | None = None

    @property
    def executable(self) -> tuple[ToolCall, ...]:
        """The calls without error."""
        return tuple(call for call in self.calls if call.error is None)

    @property
    def failed(self) -> tuple[ToolCall, ...]:
        """The calls with an error: attempts, which evals count but never execute."""
        return tuple(call for call in self.calls if call.error is not None)


@dataclass(frozen=True)
class RawCall:
    """A call as its format spells it, before names and arguments are compared with the tools.

    `texts`: arguments are texts, whose types only the schema knows.
    """

    name: str | None
    arguments: Mapping[str, Any]
    span: tuple[int, int]
    error: str | None = None
    texts: bool = False


def coerce_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with each text as the type that its property's schema names; what cannot be converted is kept as it is.

    A text stays one where the schema allows texts, or says nothing. Else, in this order: integer, number, boolean, null, and
    JSON for objects and arrays. `json_schema.problems_of` then says what does not fit.
    """
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return {name: _coerce(value, known.get(name)) if isinstance(value, str) else value for name, value in arguments.items()}


def _coerce(text: str, schema: Any) -> Any:
    types = _types(schema)
    if not types or "string" in types:
        return text
    value = _loads(text.strip())
    for kind, python in _KINDS.items():
        if kind in types and isinstance(value, python) and (kind == "boolean" or not isinstance(value, bool)):
            return value
    if "boolean" in types and text.strip().lower() in ("true", "false"):  # as Python and people write it
        return text.strip().lower() == "true"
    if "null" in types and text.strip().lower() in ("null", "none"):
        return None
    return text


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
}


def _types(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows by `type`, `enum`, `const`, `anyOf` or `oneOf`; none known: empty."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    named = {kind for kind in _listed(kinds) if isinstance(kind, str)}
    if named:
        return named
    types = {_type_of(choice) for choice in [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]}
    for key in ("anyOf", "oneOf"):
        for branch in _listed(schema.get(key)):
            more = _types(branch)
            if not more:
                return set()  # a branch that takes anything
            types |= more
    return types


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def _type_of(value: object) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    return next((kind for kind, python in _KINDS.items() if isinstance(value, python)), "string")


_DECODER = AnswerDecoder()


def _loads(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except ValueError:
        return text


def prompt_part(tools: Sequence[Tool]) -> str:
    """Return what a system message says of the tools; it asks for calls in the form that `hermes` reads."""
    listed = "\n".join(json.dumps(tool.to_json()["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can call these tools, one JSON object with name, description and the JSON Schema of its parameters a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, write a JSON object with its name and arguments between <tool_call> and </tool_call>, one pair for each call:\n"
        '<tool_call>\n{"name": "tool name", "arguments": {"parameter": "value"}}\n</tool_call>\n'
        "Call none where none is needed: then answer in plain words."
    )
