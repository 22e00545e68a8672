"""Messages → prompt, once, the same for every backend. Thinking is off unless requested."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from evalharness.api.errors import TemplateError
from evalharness.api.options import ChatTemplateOptions
from evalharness.api.tools import Tool, read_tools

_Tools: TypeAlias = "Sequence[Tool | Mapping[str, Any]]"


def check_template_owner(owner: Any, options: ChatTemplateOptions) -> None:
    """Raise `AttributeError` or `TypeError` if no request at all could be rendered; see `render_prompt`."""
    if getattr(owner, "apply_chat_template", None) is None:
        raise AttributeError(f"{type(owner).__name__} has no apply_chat_template; this checkpoint cannot render chats")
    if options.tokenize:
        raise TypeError("chat_template.tokenize must be False: a prompt is rendered to str, and tokenised once for every backend")


def render_prompt(owner: Any, messages: Sequence[Mapping[str, Any]], options: ChatTemplateOptions, *, tools: _Tools = ()) -> str:
    """Return the prompt text that the owner's (a tokenizer's or processor's) chat template makes of the messages.

    Tools go to a template that knows them; for any other template the system message describes them, with `tool_calls.prompt_part`.

    Raises `AttributeError` if the owner has no `apply_chat_template`, `TypeError` if the result is not a string (`tokenize=True`),
    `TemplateError` if the template is absent or refuses the messages. A template that does not know `enable_thinking` is called once more
    without it; any other `TypeError` propagates.
    """
    check_template_owner(owner, options)
    if not messages:
        raise TemplateError("the request has no messages; give at least one user message")
    extra: dict[str, Any] = {}
    if tools:
        from evalharness.tool_calls import prompt_part  # few requests have tools, and it brings its parsers along

        read = read_tools(tools)
        if _names(owner, "tools"):  # a template without the variable ignores them silently
            extra["tools"] = [tool.to_json() for tool in read]
        else:
            messages = _with_system_part(messages, prompt_part(read))
    prompt = _apply(owner.apply_chat_template, list(messages), options, extra)
    if not isinstance(prompt, str):
        raise TypeError(f"the chat template gave {type(prompt).__name__}, not str")
    return prompt


def knows_enable_thinking(owner: Any) -> bool:
    """Return whether the template, or one of several, can turn thinking off; other templates ignore the option silently."""
    return _names(owner, "enable_thinking")


def _names(owner: Any, variable: str) -> bool:
    template = getattr(owner, "chat_template", None) or ""
    sources = template.values() if isinstance(template, Mapping) else [template]
    return any(re.search(rf"\b{variable}\b", source) for source in sources)


def _with_system_part(messages: Sequence[Mapping[str, Any]], part: str) -> list[Mapping[str, Any]]:
    if messages[0].get("role") != "system":
        return [{"role": "system", "content": part}, *messages]
    content = messages[0].get("content")
    if isinstance(content, str):
        return [{**messages[0], "content": f"{content}\n\n{part}"}, *messages[1:]]
    return [{**messages[0], "content": [*(content or ()), {"type": "text", "text": part}]}, *messages[1:]]


def _apply(apply: Any, messages: list[Mapping[str, Any]], options: ChatTemplateOptions, extra: Mapping[str, Any]) -> Any:
    arguments: dict[str, Any] = {
        "add_generation_prompt": options.add_generation_prompt,
        "tokenize": options.tokenize,
        "continue_final_message": options.continue_final_message,
        **extra,
    }
    try:
        try:
            return apply(messages, enable_thinking=options.enable_thinking, **arguments)
        except TypeError as error:
            if "enable_thinking" not in str(error):
                raise
        return apply(messages, **arguments)
    except TypeError:
        raise
    except Exception as error:
        raise _template_error(error) from error


def _template_error(error: Exception) -> Exception:
    """Return a template's refusal as an error of this request; jinja and transformers raise many kinds."""
    if isinstance(error, (MemoryError, OSError)):
        return error
    if isinstance(error, (ValueError, AttributeError)) and "chat_template" in str(error):
        return TemplateError(
            "this checkpoint has no chat template; add chat_template.jinja to it, or use a checkpoint that was trained on chats"
        )
    return TemplateError(f"the chat template refuses these messages: {type(error).__name__}: {error}")


def template_sha256(owner: Any) -> str | None:
    """Return the SHA-256 (hex) of the owner's chat template, None if it has none."""
    template = getattr(owner, "chat_template", None)
    if not template:
        return None
    text = template if isinstance(template, str) else repr(sorted(dict(template).items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
