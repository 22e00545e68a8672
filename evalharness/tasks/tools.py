"""Tool calls: prompts with the offered tools and the expected calls.

    {"id": "weather-1", "prompt": "Will it rain in Ulm tomorrow?", "tools": ["get_weather"],
     "expected": [{"name": "get_weather", "arguments": {"city": {"$text": "Ulm"}, "days": 1}}]}

One row per line in `<data folder>/tool_calls.jsonl`; the other keys are those of `prompt_rows.py`. `tools` are names of tools in
`tools.json` beside the file (a list in the form that chat templates take), or whole tools. `expected` lists the right calls in
any order; `[]` means that none is needed. Argument values are those of `json_answers.py`; unnamed arguments must be absent.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.analysis.statistics.overlap import Overlap
from evalharness.answers.json_paths import MISSING
from evalharness.api.checks import read_regular
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, did_you_mean
from evalharness.api.tools import Tool, read_tools
from evalharness.tasks.json_answers import check_expected, matches
from evalharness.tasks.prompt_rows import Judgement, PromptCase, PromptRow, none_in, read_rows, request_of
from evalharness.tool_calls import ToolAnswer, ToolCall

FILE_NAME = "tool_calls.jsonl"
TOOLS_FILE = "tools.json"


@dataclass(frozen=True, kw_only=True)
class ToolCase(PromptCase):
    """One row; `reference` is the list of expected calls, [] where none is needed."""


def load_cases(data_dir: Path | str | None, *, name: str = FILE_NAME) -> list[ToolCase]:
    """Return one case per row of `<data_dir>/tool_calls.jsonl`; `ConfigError` names the line that is wrong."""
    cases = []
    known: dict[str, Tool] | None = None
    for row in read_rows(data_dir, name, ("tools", "expected")):
        known = _known_tools(row.folder) if known is None else known
        tools = _offered(row, known)
        expected = _expected(row, {tool.name for tool in tools})
        cases.append(ToolCase(reference=expected, **row.case_fields(tuple(tool.to_json() for tool in tools))))
    return cases


request = request_of


def _known_tools(folder: Path) -> dict[str, Tool]:
    path = folder / TOOLS_FILE
    if not path.is_file():
        return {}
    try:
        return {tool.name: tool for tool in read_tools(json.loads(read_regular(path)))}
    except (OSError, ValueError, RecursionError, ContractTypeError) as error:
        raise ConfigError(f"{path} does not hold a list of tools: {error}") from error


def _offered(row: PromptRow, known: Mapping[str, Tool]) -> tuple[Tool, ...]:
    offered = row.values.get("tools")
    if not isinstance(offered, list) or not offered:
        raise ConfigError(f"{row.where}: tools must be a list with at least one tool, or name of one in {TOOLS_FILE}, got {offered!r}")
    for tool in offered:
        if isinstance(tool, str) and tool not in known:
            hint = did_you_mean(tool, known) or "."
            raise ConfigError(f"{row.where}: the tool {tool!r} is not in {TOOLS_FILE}{hint} Known: {', '.join(known) or 'none'}")
    try:
        return read_tools([known[tool] if isinstance(tool, str) else tool for tool in offered])
    except (ContractTypeError, ContractValueError) as error:
        raise ConfigError(f"{row.where}: {error}") from error


def _expected(row: PromptRow, offered: set[str]) -> list[dict[str, Any]]:
    expected = row.values.get("expected")
    if not isinstance(expected, list):
        raise ConfigError(f"{row.where}: expected must be a list of calls, [] where none is needed, got {expected!r}")
    for number, call in enumerate(expected):
        where = f"{row.where}: expected[{number}]"
        if not isinstance(call, dict) or set(call) - {"name", "arguments"} or not isinstance(call.get("arguments", {}), dict):
            raise ConfigError(f"{where} must be an object with name and arguments, got {call!r}")
        if call.get("name") not in offered:
            raise ConfigError(f"{where}: {call.get('name')!r} is not offered; tools of this row: {', '.join(sorted(offered))}")
        for argument, value in call.get("arguments", {}).items():
            check_expected(value, f"{where} argument {argument!r}")
    return [{"name": call["name"], "arguments": call.get("arguments", {})} for call in expected]


def judge(answer: ToolAnswer, expected: Sequence[Mapping[str, Any]], finish_reason: str | None = None) -> Judgement:
    """Return the scores of calls against the expected ones; a call that cannot be executed counts, but is never right.

    `finish_reason` says whether the answer was cut.

    `all_right`: the expected calls, all executable, and no others. `right_tool`, where calls are expected: each tool as often as
    expected. `right_arguments`, likewise: share of the expected calls that were made with the expected arguments. `no_call`, where
    none is expected: none was made. `executable`, where any was made: share of the calls without error.
    """
    names, wanted = Counter(call.name for call in answer.calls), Counter(call["name"] for call in expected)
    pairs = _pairs(answer.executable, expected)
    scores: dict[str, float] = {"all_right": float(len(pairs) == len(expected) == len(answer.calls))}
    if expected:
        scores["right_tool"] = float(names == wanted)
        scores["right_arguments"] = len(pairs) / len(expected)
    else:
        scores["no_call"] = float(not answer.calls)
    if answer.calls:
        scores["executable"] = len(answer.executable) / len(answer.calls)
    right = Counter(expected[number]["name"] for number in pairs)
    details = {
        "calls": [call.to_json() for call in answer.calls],
        "format": answer.format,
        "tools": {
            name or "no name": {"expected": wanted[name], "made": names[name], "right": right[name]}
            for name in sorted({*names, *wanted}, key=str)
        },
    }
    return Judgement(scores, details, _problem(answer, expected, names, wanted, finish_reason) if scores["all_right"] != 1.0 else "")


def _pairs(calls: Sequence[ToolCall], expected: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the places of the expected calls that were made, each by a call of its own, as many as possible (Kuhn's algorithm)."""
    fits = [[number for number, wanted in enumerate(expected) if _is_right(call, wanted)] for call in calls]
    taken: dict[int, int] = {}

    def place(call: int, seen: set[int]) -> bool:
        for number in fits[call]:
            if number not in seen:
                seen.add(number)
                if number not in taken or place(taken[number], seen):
                    taken[number] = call
                    return True
        return False

    for call in range(len(calls)):
        place(call, set())
    return set(taken)


def _is_right(call: ToolCall, wanted: Mapping[str, Any]) -> bool:
    arguments = wanted["arguments"]
    same_names = set(call.arguments) <= set(arguments)
    return call.name == wanted["name"] and same_names and all(matches(call.arguments.get(n, MISSING), v) for n, v in arguments.items())


def _problem(
    answer: ToolAnswer,
    expected: Sequence[Mapping[str, Any]],
    names: Mapping[str | None, int],
    wanted: Mapping[str | None, int],
    finish_reason: str | None,
) -> str:
    if not expected:
        return f"no call is needed, but {len(answer.calls)} made: {', '.join(str(call.name) for call in answer.calls)}"
    if not answer.calls:
        return none_in("call", answer.content, finish_reason)
    if answer.failed:
        return f"{answer.failed[0].name or 'a call'} cannot be executed: {answer.failed[0].error}"
    if names != wanted:
        return f"called {', '.join(map(str, names))} instead of {', '.join(map(str, wanted))}"
    return f"wrong arguments: {json.dumps([dict(call.arguments) for call in answer.calls])[:200]}"


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the calls of each tool, with precision (right ÷ made) and recall (right ÷ expected), and the errors of calls."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    errors: Counter[str] = Counter()
    for row in rows:
        details = row.get("details") or {}
        for name, tool in details.get("tools", {}).items():
            counts[name].update(tool)
        errors.update(call["error"][:120] for call in details.get("calls", ()) if call["error"])
    by_tool = [
        {
            "tool": name,
            **{key: tool[key] for key in ("expected", "made", "right")},
            "precision": overlap.precision(None),
            "recall": overlap.recall(None),
        }
        for name, tool in sorted(counts.items())
        for overlap in [Overlap(tool["right"], tool["made"], tool["expected"])]
    ]
    why = [{"error": error, "calls": count} for error, count in errors.most_common(20)]
    return {**({"by tool": by_tool} if by_tool else {}), **({"calls that cannot be executed": why} if why else {})}
