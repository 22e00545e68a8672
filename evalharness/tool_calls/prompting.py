"""Tools in words, for chat templates that do not know them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from evalharness.api.tools import Tool

__all__ = ["prompt_part"]


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
