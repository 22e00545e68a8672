"""Reads the calls of tools (`evalharness.api.tools`) out of an answer. Pure: text in, records out.

tools = [Tool("search", parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})]
answer = parse_tool_calls(generation.text, tools, finish_reason=generation.finish_reason)
for call in answer.executable: ...
"""

from evalharness.tool_calls.parse import FORMATS, parse_tool_calls
from evalharness.tool_calls.types import ToolAnswer, ToolCall, coerce_arguments, prompt_part

__all__ = ["FORMATS", "ToolAnswer", "ToolCall", "coerce_arguments", "parse_tool_calls", "prompt_part"]
