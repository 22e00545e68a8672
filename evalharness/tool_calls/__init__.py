"""Reads the calls of tools (`evalharness.api.tools`) out of an answer. Pure: text in, records out.

tools = [Tool("search", parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})]
answer = parse_tool_calls(generation.text, tools, finish_reason=generation.finish_reason)
for call in answer.executable: ...
"""

from evalharness.tool_calls.parse import FORMATS as FORMATS, parse_tool_calls as parse_tool_calls
from evalharness.tool_calls.types import (
    ToolAnswer as ToolAnswer,
    ToolCall as ToolCall,
    coerce_arguments as coerce_arguments,
    prompt_part as prompt_part,
)
