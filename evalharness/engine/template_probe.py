"""What a chat template does with what it is given, found by rendering marks in place of texts: once for each shape of a chat.

A template's source says little: it may name tools in a comment, or a role that it drops. Looking for the texts themselves would mistake two
turns with one text for each other. Marks of letters and digits come through stripping and JSON's escapes as they are.
"""

from __future__ import annotations

import html
import json
import re
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Messages = Sequence[Mapping[str, Any]]
Render = Callable[..., Any]
"""Renders messages, with `tools` if given; any exception: it refuses them."""

_AS_IT_IS = ("role", "type", "id", "tool_call_id")  # structure; templates check some, and write few
_PARTS_AS_DATA = re.compile(r"""["']type["']: ?["'](?:text|image)["']""")
_Found = TypeVar("_Found")
_known: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
_MOST_SHAPES = 1000
_MISSING: Any = object()


def remembered(owner: Any, key: Hashable, find: Callable[[], _Found]) -> _Found:
    """Return what was found for this key and the owner's template, or find it now."""
    template = getattr(owner, "chat_template", None)
    place = (template if isinstance(template, str) else repr(template), key)
    try:
        known = _known.setdefault(owner, {})
        found: _Found = known.get(place, _MISSING)
    except TypeError:  # one of both can be no key
        return find()
    if found is _MISSING:
        found = find()
        if len(known) >= _MOST_SHAPES:
            known.clear()
        known[place] = found
    return found


def _shape_of(value: Any) -> Hashable:
    """Return a key that is equal for values whose texts `MarkedChat` replaces by the same marks, without making them: for each prompt."""
    if isinstance(value, str):
        return value if not value or value.isspace() else _is_json(value)
    # Those of JSON first: abstract classes are slow to ask.
    if isinstance(value, (dict, Mapping)):
        return tuple([(name, part if name in _AS_IT_IS else _shape_of(part)) for name, part in value.items()])
    if isinstance(value, (list, tuple, Sequence)) and not isinstance(value, bytes):
        return ("list", *map(_shape_of, value))
    return repr(value) if value is None or isinstance(value, bool) else "number"


def _is_json(text: str) -> bool:
    return text.startswith("{") or (text[0].isspace() and text.lstrip().startswith("{"))


class MarkedChat:
    """A chat of the same shape, with a mark in place of each text; `names`: what each mark stands for."""

    def __init__(self, messages: Messages) -> None:
        self.names: dict[str, str] = {}
        self.messages = [self._message(message, _turn(messages, place)) for place, message in enumerate(messages, 1)]

    def _message(self, message: Mapping[str, Any], turn: str) -> dict[str, Any]:
        return {
            name: value if name in _AS_IT_IS else self._marked(value, turn if name == "content" else f"{name} of {turn}")
            for name, value in message.items()
        }

    def _marked(self, value: Any, what: str) -> Any:
        if isinstance(value, str):
            if not value.strip():
                return value
            mark = f"zq{len(self.names)}qz"
            self.names[mark] = what
            return json.dumps({mark: 0}) if _is_json(value) else mark
        if isinstance(value, Mapping):
            return {name: part if name in _AS_IT_IS else self._marked(part, what) for name, part in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._marked(part, what) for part in value]
        return value if value is None or isinstance(value, bool) else 0


def left_out(owner: Any, messages: Messages, prompt: str, render: Render, key: Hashable) -> tuple[str, ...]:
    """Return what of the messages is not in a prompt: "the system turn (1 of 2)", "the role of …"; () if all of it is.

    `render(messages)` gives the prompt of other messages in the same way, of which `key` is a part that the messages do not show.
    """
    by_shape = remembered(owner, (_shape_of(messages), key), lambda: _left_out_of(MarkedChat(messages), render))
    otherwise = [(place, text) for place, text in _texts(messages) if text not in prompt and text.strip() not in prompt]
    if not otherwise:
        return by_shape
    letters = (_letters(prompt), _letters(html.unescape(prompt)))  # once: it is slow for long prompts
    changed = [f"a part of {_turn(messages, place)}" for place, text in otherwise if not _is_spelled(text, letters)]
    return tuple(dict.fromkeys([*by_shape, *(what for what in changed if what.removeprefix("a part of ") not in by_shape)]))


def _left_out_of(marked: MarkedChat, render: Render) -> tuple[str, ...]:
    prompt = _rendered(render, marked.messages)
    if prompt is None:
        return ()  # it refuses marks; the texts themselves are looked for
    gone = [what for mark, what in marked.names.items() if mark not in prompt]
    # What calls tools is told by its calls: templates write its role without looking.
    for role in dict.fromkeys(str(message.get("role")) for message in marked.messages if len(marked.messages) > 1 and not _calls(message)):
        if _rendered(render, _with_other_role(marked.messages, role)) == prompt:
            gone.append(f"the role {role}")
    if any(isinstance(message.get("content"), list) for message in marked.messages):
        without = _without_images(marked.messages)
        if without != marked.messages and _rendered(render, without) == prompt:
            gone.append("the images")
        if _PARTS_AS_DATA.search(prompt):
            gone.append("the form of content in parts, which is written as Python data")
    return tuple(dict.fromkeys(gone))


def _rendered(render: Render, messages: Messages) -> str | None:
    try:
        prompt = render(messages)
    except Exception:  # templates refuse in any way
        return None
    return prompt if isinstance(prompt, str) else None


def _with_other_role(messages: Messages, role: str) -> list[Mapping[str, Any]]:
    place = next(place for place, message in enumerate(messages) if str(message.get("role")) == role and not _calls(message))
    other = {**messages[place], "role": "assistant" if role == "user" else "user"}
    return [*messages[:place], other, *messages[place + 1 :]]


def _calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls"))


def _without_images(messages: Messages) -> list[Mapping[str, Any]]:
    def bare(content: Any) -> Any:
        if not isinstance(content, list):
            return content
        return [part for part in content if not (isinstance(part, Mapping) and part.get("type") == "image")]

    return [{**message, "content": bare(message.get("content"))} for message in messages]


def _turn(messages: Messages, place: int) -> str:
    """Return what a message, from 1 on, is called."""
    return f"the {messages[place - 1].get('role')} turn" + (f" ({place} of {len(messages)})" if len(messages) > 1 else "")


def _texts(messages: Messages) -> Iterator[tuple[int, str]]:
    """Yield every text of a content with the place of its message, from 1 on."""
    for place, message in enumerate(messages, 1):
        content = message.get("content")
        if isinstance(content, str):
            yield place, content
        elif isinstance(content, Sequence):
            for part in content:
                text = part.get("text") if isinstance(part, Mapping) else part
                if isinstance(text, str):
                    yield place, text


def _is_spelled(text: str, prompts: Sequence[str]) -> bool:
    """Return whether the letters of a prompt have a text: with other spaces, or as JSON or HTML writes it."""
    forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1])
    return any(_letters(form) in letters for letters in prompts for form in forms)


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()


def takes_tools(owner: Any, messages: Messages, tools: Sequence[Mapping[str, Any]], render: Render, key: Hashable) -> bool:
    """Return whether a chat template writes the tools that it is given: all of their names, beside these messages."""
    marked = MarkedChat(messages).messages
    names = [f"zqt{place}qz" for place in range(len(tools))]
    named = [{**tool, "function": {**tool["function"], "name": name}} for tool, name in zip(tools, names, strict=True)]

    def find() -> bool:
        prompt = _rendered(lambda given: render(given, tools=named), marked)
        return prompt is not None and all(name in prompt for name in names)

    return remembered(owner, ("tools", json.dumps([marked, named], default=repr), key), find)


def takes_switch(owner: Any, render: Callable[[Messages, bool], Any]) -> bool:
    """Return whether prompts differ by `enable_thinking`, which `render` takes beside messages."""
    user = {"role": "user", "content": "zq0qz"}
    chats: list[Messages] = [[user], [{"role": "system", "content": "zq1qz"}, user]]

    def find() -> bool:
        return any(
            _rendered(lambda given: render(given, True), chat) != _rendered(lambda given: render(given, False), chat) for chat in chats
        )

    return remembered(owner, "enable_thinking", find)
