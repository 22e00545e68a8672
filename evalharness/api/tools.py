"""Tools that a model may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalharness.api.checks import check_instance, check_json, check_sequence, check_text
from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.api.json_schema import check_schema


@dataclass(frozen=True)
class Tool:
    """A tool that a model may call; `parameters` is a JSON Schema of type object, as chat templates expect. Frozen, validated."""

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
        check_schema(self.parameters, f"tool.parameters of {self.name!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates and servers take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def read_tools(tools: Sequence[Tool | Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Return tools from plain data: `{"type": "function", "function": {…}}`, or a mapping of name, description and parameters.

    Raises `ContractTypeError` or `ContractValueError` naming the tool; two tools with the same name are refused.
    """
    if type(tools) is tuple and not tools:  # most requests
        return ()
    check_sequence("tools", tools, "tools")
    checked = tuple(_read_tool(f"tools[{position}]", tool) for position, tool in enumerate(tools))
    names = [tool.name for tool in checked]
    for name in names:
        if names.count(name) > 1:
            raise ContractValueError(f"tools: {name!r} is offered {names.count(name)} times; give each tool its own name")
    return checked


def _read_tool(path: str, tool: Tool | Mapping[str, Any]) -> Tool:
    if isinstance(tool, Tool):
        return tool
    if not isinstance(tool, Mapping):
        raise ContractTypeError(f"{path} must be a Tool or a mapping, got {tool!r} ({type(tool).__name__})")
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or "name" not in function:
        raise ContractValueError(f"{path} has no name; write {{'type': 'function', 'function': {{'name': …, 'parameters': …}}}}")
    optional = {key: function[key] for key in ("description", "parameters") if function.get(key) is not None}
    try:
        return Tool(function["name"], **optional)
    except (ContractTypeError, ContractValueError) as error:
        raise type(error)(f"{path}: {error}") from error
