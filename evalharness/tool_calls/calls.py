"""The records of this room: a tool that is offered, a call that an answer holds, and an answer with all of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalharness.contract_checks import check_instance, check_json, check_sequence, check_text
from evalharness.errors import ContractTypeError, ContractValueError

__all__ = ["Found", "Tool", "ToolAnswer", "ToolCall", "read_tools"]


@dataclass(frozen=True)
class Tool:
    """A tool that a model is offered; `parameters` is a JSON Schema of type object, as chat templates want it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def __post_init__(self) -> None:
        check_text("tool.name", self.name)
        if not self.name.strip():
            raise ContractValueError("tool.name is empty; a model must be able to name its tools")
        check_text("tool.description", self.description)
        check_instance("tool.parameters", self.parameters, Mapping)
        check_json("tool.parameters", dict(self.parameters))
        if self.parameters.get("type", "object") != "object":
            raise ContractValueError(f"tool.parameters.type must be 'object', got {self.parameters['type']!r}")
        _check_schema(self.name, self.parameters)

    def to_json(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates and servers take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def _check_schema(name: str, schema: Mapping[str, Any]) -> None:
    from jsonschema import Draft202012Validator, SchemaError  # here: who offers no tools need not wait for it

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ContractValueError(f"tool.parameters of {name!r} is no JSON Schema: {error.message} (at {error.json_path})") from error


def read_tools(tools: Sequence[Tool | Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Return tools from plain data: `{"type": "function", "function": {…}}`, or name, description and parameters as they are.

    Raises `ContractTypeError` or `ContractValueError` with the place; two tools of one name are refused.
    """
    check_sequence("tools", tools, "tools")
    read = tuple(_read_tool(f"tools[{position}]", tool) for position, tool in enumerate(tools))
    names = [tool.name for tool in read]
    for name in names:
        if names.count(name) > 1:
            raise ContractValueError(f"tools: {name!r} is offered {names.count(name)} times; give each tool a name of its own")
    return read


def _read_tool(path: str, given: Tool | Mapping[str, Any]) -> Tool:
    if isinstance(given, Tool):
        return given
    if not isinstance(given, Mapping):
        raise ContractTypeError(f"{path} must be a Tool or a mapping, got {given!r} ({type(given).__name__})")
    function = given.get("function", given)
    if not isinstance(function, Mapping) or "name" not in function:
        raise ContractValueError(f"{path} has no name; write {{'type': 'function', 'function': {{'name': …, 'parameters': …}}}}")
    more = {key: function[key] for key in ("description", "parameters") if function.get(key) is not None}
    try:
        return Tool(function["name"], **more)
    except (ContractTypeError, ContractValueError) as error:
        raise type(error)(f"{path}: {error}") from error


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
        """The calls with an error: attempts, which an eval counts and nobody executes."""
        return tuple(call for call in self.calls if call.error is not None)


@dataclass(frozen=True)
class Found:
    """A call as a format has it, before names and arguments are compared with the tools.

    `texts`: arguments are texts, whose types only the schema knows.
    """

    name: str | None
    arguments: Mapping[str, Any]
    span: tuple[int, int]
    error: str | None = None
    texts: bool = False
