"""Tool calls: the right tool with the right arguments, and no call where none is needed.

One row per line in `<data folder>/tool_calls.jsonl`, tools in `tools.json` beside it:

    {"id": "weather-1", "prompt": "Will it rain in Ulm tomorrow?", "tools": ["get_weather"],
     "expected": [{"name": "get_weather", "arguments": {"city": {"$text": "Ulm"}, "days": 1}}]}

    pytest evals/test_tools.py --model CHECKPOINT --data FOLDER

Rows are described in `evalharness/tasks/tools.py`; `fixtures/tool_calls` has a few to copy. Calls are read in any form that models
write (`evalharness/tool_calls`); the shipped checkpoints look at photos and call no tools.

Gates: `right_tool` and `right_arguments` where calls are expected, `no_call` where none is; `executable`, of all calls.
"""

from __future__ import annotations

import pytest

from evalharness import DecodeOptions, GenerationOptions
from evalharness.tasks import tools
from evalharness.tool_calls import parse_tool_calls

pytestmark = pytest.mark.eval(
    cases=tools.load_cases,
    request=tools.request,
    # Some models mark calls with special tokens ([TOOL_CALLS], <|python_tag|>), which must stay in the text.
    options=GenerationOptions(max_new_tokens=512, decode=DecodeOptions(skip_special_tokens=False)),
    tables=tools.tables,
    optional=True,
)


@pytest.mark.gate("right_tool >= 0.90", "right_arguments >= 0.80", "no_call >= 0.90", "executable >= 0.95")
def test_calls(case, generation, score, details):
    answer = parse_tool_calls(generation.answer, case.tools, finish_reason=generation.finish_reason)
    judged = tools.judge(answer, case.reference, generation.finish_reason)
    score(**judged.scores)
    details(**judged.details)
    assert judged.all_right, judged.problem
