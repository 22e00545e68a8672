"""Messages → prompt, once, the same for every backend. Thinking is off unless requested."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from evalharness.api.errors import TemplateError
from evalharness.api.options import ChatTemplateOptions
from evalharness.api.tools import Tool, read_tools
from evalharness.engine import template_probe

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
    messages, extra = _with_tools(owner, messages, options, tools)
    prompt = _apply(owner, list(messages), options, extra)
    if not isinstance(prompt, str):
        raise TypeError(f"the chat template gave {type(prompt).__name__}, not str")
    return prompt


def left_out_of(
    prompt: str, owner: Any, messages: Sequence[Mapping[str, Any]], options: ChatTemplateOptions, *, tools: _Tools = ()
) -> tuple[str, ...]:
    """Return what the chat template left out of the prompt that it made of these messages and tools."""
    messages, extra = _with_tools(owner, messages, options, tools)
    gone = template_probe.left_out(
        owner, messages, prompt, lambda given: _apply(owner, list(given), options, extra), (options, bool(extra))
    )
    is_without_tools = bool(tools) and not extra and any("system turn" in what for what in gone)
    return (*gone, "the tools") if is_without_tools else gone


def _with_tools(
    owner: Any, messages: Sequence[Mapping[str, Any]], options: ChatTemplateOptions, tools: _Tools
) -> tuple[Sequence[Mapping[str, Any]], dict[str, Any]]:
    """Return the messages, and the tools as an argument for a template that writes them; for others the system message has them."""
    if not tools:
        return messages, {}
    read = read_tools(tools)
    as_json = [tool.to_json() for tool in read]

    def render(given: Sequence[Mapping[str, Any]], **extra: Any) -> Any:
        return _apply(owner, list(given), options, extra)

    if template_probe.takes_tools(owner, messages, as_json, render, options):
        return messages, {"tools": as_json}
    from evalharness.tool_calls import prompt_part  # few requests have tools, and it brings its parsers along

    return _with_system_part(messages, prompt_part(read)), {}


def knows_enable_thinking(owner: Any) -> bool:
    """Return whether the template's prompts differ by the option; other templates ignore it silently."""
    if getattr(owner, "apply_chat_template", None) is None:
        return False

    def render(messages: Sequence[Mapping[str, Any]], is_on: bool) -> Any:
        return _apply(owner, list(messages), ChatTemplateOptions(enable_thinking=is_on), {})

    return template_probe.takes_switch(owner, render)


def _with_system_part(messages: Sequence[Mapping[str, Any]], part: str) -> list[Mapping[str, Any]]:
    if messages[0].get("role") != "system":
        return [{"role": "system", "content": part}, *messages]
    content = messages[0].get("content")
    if isinstance(content, str):
        return [{**messages[0], "content": f"{content}\n\n{part}"}, *messages[1:]]
    return [{**messages[0], "content": [*(content or ()), {"type": "text", "text": part}]}, *messages[1:]]


def _apply(owner: Any, messages: list[Mapping[str, Any]], options: ChatTemplateOptions, extra: Mapping[str, Any]) -> Any:
    arguments: dict[str, Any] = {
        "add_generation_prompt": options.add_generation_prompt,
        "tokenize": options.tokenize,
        "continue_final_message": options.continue_final_message,
        **extra,
    }
    try:
        try:
            return owner.apply_chat_template(messages, enable_thinking=options.enable_thinking, **arguments)
        except TypeError as error:
            if "enable_thinking" not in str(error):
                raise
        return owner.apply_chat_template(messages, **arguments)
    except TypeError:
        raise
    except Exception as error:
        raise _template_error(owner, error) from error


def _template_error(owner: Any, error: Exception) -> Exception:
    """Return a template's refusal as an error of this request; jinja and transformers raise many kinds."""
    if isinstance(error, (MemoryError, OSError)):
        return error
    if isinstance(error, (ValueError, AttributeError)) and "chat_template" in str(error):
        return TemplateError(
            "this checkpoint has no chat template; add chat_template.jinja to it, use a checkpoint that was trained on chats, or ask for "
            "bare texts (CompletionRequest)"
        )
    if type(error).__name__ == "TemplateLimit":
        name = getattr(owner, "name_or_path", "") or "this checkpoint"
        return TemplateError(f"the chat template of {name} takes too much: {error}; use one that ends")
    return TemplateError(f"the chat template refuses these messages: {type(error).__name__}: {error}")


def template_sha256(owner: Any) -> str | None:
    """Return the SHA-256 (hex) of the owner's chat template, None if it has none."""
    template = getattr(owner, "chat_template", None)
    if not template:
        return None
    text = template if isinstance(template, str) else repr(sorted(dict(template).items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
