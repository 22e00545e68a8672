"""Which calls of tools (`evalharness.tools`) stand in an answer. Pure: text in, records out.

tools = [Tool("search", parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})]
answer = parse_tool_calls(generation.text, tools, finish_reason=generation.finish_reason)
for call in answer.executable: ...
"""

from evalharness.tool_calls.calls import ToolAnswer, ToolCall
from evalharness.tool_calls.parsing import FORMATS, parse_tool_calls
from evalharness.tool_calls.prompting import prompt_part
from evalharness.tool_calls.schema import coerce_arguments

__all__ = ["FORMATS", "ToolAnswer", "ToolCall", "coerce_arguments", "parse_tool_calls", "prompt_part"]
