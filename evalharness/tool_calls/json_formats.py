"""Calls written as JSON: behind marks (hermes and others), behind names (mistral, DeepSeek, Kimi, gpt-oss, Gemma), fenced, llama, bare."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalharness.api.json_schema import AnswerDecoder
from evalharness.tool_calls.types import RawCall

_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_NO_ARGUMENTS = f"the call has no arguments; expected one of {', '.join(_ARGUMENTS)}"
_WINDOW = 4096  # characters
_LONGEST_LITERAL = 16  # characters; what ends so near to a window's end may be cut by it: `fals`, `\\ud83d\\ud`
_SPACE = re.compile(r"\s*")
_FENCE = re.compile(r"```[^\S\n]*([A-Za-z_+-]*)[^\S\n]*\n?")
_CALL_START = re.compile(r'\{\s*"(?:type|id|index|' + "|".join((*_NAMES, *_ARGUMENTS)) + r')"\s*:')
_LOOKS_LIKE_CALL = re.compile(r'"(?:name|tool|tool_name)"\s*:')
_MARK = "[TOOL_CALLS]"
_HERMES = re.compile(r"(?P<open><tool_call>)|</tool_call>")
_TAGGED = re.compile(  # Granite, Granite 20B, Jamba and Hunyuan, Phi-4-mini, InternLM, LongCat, Command, GigaChat
    r"(?P<open><\|tool_call\|>|<function_call>|<tool_calls>|\bfunctools(?=\[\s{0,64}\{)|<\|action_start\|>\s{0,64}<\|plugin\|>"
    r"|<longcat_tool_call>|<\|START_ACTION\|>|function call<\|role_sep\|>)"
    r"|</function_call>|</tool_calls>|<\|action_end\|>|</longcat_tool_call>|<\|END_ACTION\|>"
)
# A name, then its arguments: how a call begins and what may stand behind it.
_DEEPSEEK = (
    re.compile(
        r"(?:<｜tool▁calls▁begin｜>\s{0,64})?<｜tool▁call▁begin｜>"
        r"(?:[^<>\n]{0,64}<｜tool▁sep｜>([^<>\n]{1,256})\n```json\s|([^<>\n]{1,256})<｜tool▁sep｜>)"
    ),
    re.compile(r"\s*(?:```\s*)?(?:<｜tool▁call▁end｜>\s*)?(?:<｜tool▁calls▁end｜>)?"),
)
_KIMI = (
    re.compile(
        r"(?:<\|tool_calls_section_begin\|>\s{0,64})?<\|tool_call_begin\|>\s{0,64}(?:functions\.)?([^\s<>:]{1,256})(?::[0-9]{1,9})?\s{0,64}"
        r"<\|tool_call_argument_begin\|>"
    ),
    re.compile(r"\s*(?:<\|tool_call_end\|>\s*)?(?:<\|tool_calls_section_end\|>)?"),
)
_HARMONY = (
    re.compile(
        r"(?:(?:<\|start\|>assistant)?\s?(?:<\|channel\|>[a-z]{1,32})?\s)?to=functions\.([^\s<>]{1,256})(?:\s?<\|channel\|>[a-z]{1,32})?"
        r"\s{0,8}(?:<\|constrain\|>)?[a-z]{0,32}<\|message\|>"
    ),
    re.compile(r"\s*(?:<\|call\|>)?"),
)
_GEMMA = re.compile(r"""(?P<start><\|tool_call>|<start_function_call>)\s{0,64}call:([^\s<>{}]{1,256})(?=\{)""")
_GEMMA_PART = re.compile(
    r"""(?P<quote><\|"\|>|<escape>)(?P<text>.*?)(?:(?P=quote)|\Z)|(?P<end><tool_call\|>|<end_function_call>)"""
    r"""|(?<![\w.-])(?P<key>[\w.-]{1,256})(?![\w.-])(?=\s{0,64}:)""",
    re.DOTALL,
)
_BEGUN = re.compile(r'\{\s*"(?:name|tool|tool_name)"\s*:\s*"([^"]{1,256})"\s*,\s*"(?:arguments|parameters|args|input)"')
_BEGUN_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]{1,256})"')
_MISTRAL_CALL = re.compile(r"\s*([\w.-]{1,256})\s*(?:\[CALL_ID\]\s*[\w-]{1,256}\s*)?(?:\[ARGS\])?\s*(?=\{)")


class _DuplicateKeys(dict[str, Any]):
    """An object with a duplicate key; it is unknown which of the two was meant."""

    duplicates: tuple[str, ...] = ()


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) == len(pairs):
        return read
    marked = _DuplicateKeys(read)
    marked.duplicates = tuple(sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return marked


_DECODER = AnswerDecoder(object_pairs_hook=_object)


def _decode(text: str, start: int) -> tuple[Any, int, str | None]:
    """Return the JSON value at a place, its end, and what is wrong (then the place up to which it was read).

    Read in windows that grow: json's errors count the lines of all that they were given, which thousands of broken starts
    in one text would make quadratic.
    """
    width = _WINDOW
    while True:
        part = text[start : start + width]
        try:
            value, end = _DECODER.raw_decode(part)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") or error.pos > len(part) - _LONGEST_LITERAL
            if cut and len(part) == width:
                width *= 16
                continue
            read = len(part) if error.msg.startswith("Unterminated") else error.pos
            return None, start + read, f"not JSON: {error.msg} at character {error.pos} of the call"
        except ValueError as error:
            return None, start + len(part), f"not JSON: {error}"
        return value, start + end, None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _call(value: Any, span: tuple[int, int]) -> RawCall | None:
    """Return the call in a JSON value, None where the value is not an object or names no tool."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    named = [key for key in _NAMES if isinstance(value.get(key), str) and value[key].strip()]
    if not named:
        return None
    name = value[named[0]].strip()
    argument_keys = [key for key in _ARGUMENTS if key in value]
    if not argument_keys:
        return RawCall(name, {}, span, _NO_ARGUMENTS)
    arguments = value[argument_keys[0]]
    if isinstance(arguments, str):  # OpenAI's form: JSON within a string
        decoded, end, problem = _decode(arguments, _skip(arguments, 0))
        if problem is None and not arguments[end:].strip():
            arguments = decoded
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return RawCall(name, {}, span, f"the arguments are not an object but {type(arguments).__name__}")
    return RawCall(name, arguments, span, _doubled(value, arguments))


def _doubled(*objects: Mapping[str, Any]) -> str | None:
    for each in objects:
        if isinstance(each, _DuplicateKeys):
            return f"keys stand twice: {', '.join(map(repr, each.duplicates))}"
    return None


def _called(value: Any, span: tuple[int, int]) -> Iterator[RawCall]:
    """Yield the call in a value that no mark calls a call, so that it needs arguments: data may have names, too."""
    call = _call(value, span)
    if call is not None and call.error != _NO_ARGUMENTS:
        yield call


def hermes(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield calls in `<tool_call>…</tool_call>`; complete JSON without the end mark counts, one broken call harms no other."""
    yield from _behind_marks(text, _HERMES)


def tagged(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield calls behind other marks, such as Granite's `<|tool_call|>[…]`: an object or a list of them."""
    yield from _behind_marks(text, _TAGGED)


def _behind_marks(text: str, marks: re.Pattern[str]) -> Iterator[RawCall]:
    position = 0
    while (opened := marks.search(text, position)) is not None:
        body = position = _skip(text, opened.end())
        if opened["open"] is None or text[body : body + 1] not in ("{", "["):  # another form, or talk about the mark
            continue
        value, end, problem = _decode(text, body)
        if problem is None:
            closed = marks.match(text, _skip(text, end))
            position = closed.end() if closed is not None and closed["open"] is None else end
            yield from _all_calls(text, body, value, (opened.start(), position))
        else:
            mark = marks.search(text, body)
            position = len(text) if mark is None else mark.end() if mark["open"] is None else mark.start()
            named = _BEGUN_NAME.match(text, body, position)
            yield RawCall(named[1] if named else None, {}, (opened.start(), position), problem)


def deepseek(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`, and the older form with a code fence."""
    yield from _behind_names(text, *_DEEPSEEK)


def kimi(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`."""
    yield from _behind_names(text, *_KIMI)


def harmony(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield gpt-oss's messages to functions: `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`."""
    yield from _behind_names(text, *_HARMONY)


def _behind_names(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> Iterator[RawCall]:
    """Yield calls that begin with their name, in the first group that matched, and go on with their arguments."""
    position = 0
    while (opened := opening.search(text, position)) is not None:
        name = next(group for group in opened.groups() if group is not None).strip()
        arguments, end, problem = _decode(text, _skip(text, opened.end()))
        if problem is not None:
            following = opening.search(text, opened.end())
            position = following.start() if following is not None else len(text)
            yield RawCall(name, {}, (opened.start(), position), problem)
            continue
        closed = closing.match(text, end)
        position = closed.end() if closed is not None else end
        yield _named_call(name, arguments, (opened.start(), position))


def _named_call(name: str, arguments: Any, span: tuple[int, int]) -> RawCall:
    if not isinstance(arguments, dict):
        return RawCall(name, {}, span, f"the arguments are not an object but {type(arguments).__name__}")
    return RawCall(name, arguments, span, _doubled(arguments))


def gemma(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield Gemma's `<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`, and FunctionGemma's with `<escape>` for quotes."""
    position = 0
    while (opened := _GEMMA.search(text, position)) is not None:
        parts, last, closed = [], opened.end(), False
        for part in _GEMMA_PART.finditer(text, last):
            closed = part["end"] is not None
            parts.append(text[last : part.start()])
            last = part.end()
            if closed:
                break
            parts.append(json.dumps(part["text"] if part["key"] is None else part["key"]))
        position = last if closed else len(text)
        span = (opened.start(), position)
        source = "".join(parts).strip()
        arguments, end, problem = _decode(source, 0)
        if problem is None and (not closed or end < len(source)):
            problem = "the call is cut off: no end mark" if not closed else "other text behind the arguments"
        call = RawCall(opened[2], {}, span, problem) if problem else _named_call(opened[2], arguments, span)
        yield replace(call, texts=opened["start"] == "<start_function_call>")  # which quotes numbers, too


def _all_calls(text: str, body: int, value: Any, span: tuple[int, int]) -> Iterator[RawCall]:
    """Yield the calls in a marked place, whose JSON begins at `body`: an object or a list of them; whatever else stands there is an error.

    Their spans leave nothing of the place between them: marks, commas and brackets are no content.
    """
    items = value if isinstance(value, list) and value else [value]
    start, position = span[0], body + 1
    for place, each in enumerate(items):
        end = span[1]
        if place < len(items) - 1:
            _, end, _ = _decode(text, _skip(text, position))
            position = _skip(text, end) + 1  # behind the comma
        own = (start, end)
        yield _call(each, own) or RawCall(None, {}, own, f"no call: the JSON, of type {type(each).__name__}, names no tool")
        start = end


def mistral(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield calls after `[TOOL_CALLS]`: `name[ARGS]{…}`, one after the other, or the older list of objects."""
    begin = text.find(_MARK)
    while begin >= 0:
        end = begin + len(_MARK)
        body = _skip(text, end)
        named = _MISTRAL_CALL.match(text, end)
        if text.startswith("[", body):
            value, end, problem = _decode(text, body)
            if problem is not None:
                yield RawCall(None, {}, (begin, len(text)), problem)
                return
            yield from _all_calls(text, body, value, (begin, end))
        elif named is None:
            yield RawCall(None, {}, (begin, end), f"no name and arguments behind {_MARK}")
        while named is not None:
            arguments, end, problem = _decode(text, named.end())
            if problem is not None:
                yield RawCall(named[1], {}, (begin, len(text)), problem)
                return
            yield RawCall(named[1], arguments, (begin, end), _doubled(arguments))
            begin, named = end, _MISTRAL_CALL.match(text, end)
        begin = text.find(_MARK, end)


def fenced(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield calls in code fences, with or without `json`. The only call of a fence has the fence's span, of several each its own."""
    position = 0
    while (fence := _FENCE.search(text, position)) is not None:
        body = _skip(text, fence.end())
        position = fence.end()
        is_json = text[body : body + 1] in ("{", "[")
        value, end, problem = _decode(text, body) if is_json else (None, body, None)
        if not is_json or problem is not None:
            close = text.find("```", body)
            position = len(text) if close < 0 else close + 3
            if problem is not None and _LOOKS_LIKE_CALL.search(text, body, position):
                yield RawCall(None, {}, (fence.start(), position), problem)
            continue
        after = _skip(text, end)
        position = after + 3 if text.startswith("```", after) else end
        yield from _fenced_calls(text, value, body, (fence.start(), position))


def _fenced_calls(text: str, value: Any, body: int, span: tuple[int, int]) -> Iterator[RawCall]:
    if not isinstance(value, list):
        yield from _called(value, span)
        return
    position = body + 1
    for each in value:
        begin = _skip(text, position)
        _, end, _ = _decode(text, begin)
        yield from _called(each, span if len(value) == 1 else (begin, end))
        position = _skip(text, end) + 1  # behind the comma


def llama(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield calls behind `<|python_tag|>`: objects, several with `;` between them."""
    mark = "<|python_tag|>"
    start = text.find(mark)
    if start < 0:
        return
    calls = list(_objects(text, start + len(mark)))
    if calls and not text[start + len(mark) : calls[0].span[0]].strip():
        calls[0] = replace(calls[0], span=(start, calls[0].span[1]))  # the mark belongs to the first call
    yield from calls


def bare(text: str, offered: Sequence[str]) -> Iterator[RawCall]:
    """Yield objects anywhere in the text that name a tool and have arguments; any other JSON is content."""
    yield from _objects(text, 0)


def _objects(text: str, position: int) -> Iterator[RawCall]:
    in_vain = 8 * len(text) + 10_000  # characters of broken JSON that are read before we give up: keeps this linear
    while (start := _CALL_START.search(text, position)) is not None:
        value, end, problem = _decode(text, start.start())
        if problem is None:
            yield from _called(value, (start.start(), end))
            position = end
            continue
        in_vain -= end - start.start()
        broken_end = _end_of_broken(text, start.start(), end)
        if broken_end is not None:
            yield RawCall(None, {}, (start.start(), broken_end), problem)
        position = broken_end or start.end()
        if in_vain < 0:
            yield RawCall(None, {}, (position, len(text)), "broken JSON, too long to be read")
            return


def _end_of_broken(text: str, start: int, read_to: int) -> int | None:
    """Return where an attempt at a call that breaks off ends, None where the broken JSON is no attempt."""
    begun = _BEGUN.match(text, start)
    if begun is None:
        return None
    next_call = _CALL_START.search(text, max(read_to, begun.end()))
    return next_call.start() if next_call else len(text)
